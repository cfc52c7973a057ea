-- Purpose: take back slots whose lease has lapsed: those of replicas that are gone, and before them
--          those that were held for a step that did not come.
-- KEYS:    1 roster, 2 all, 3 line:all, 4 holds, 5 notes of holds; then any of the sets all, pool,
--          tenant, key.
-- ARGV:    1 the longest lease anyone may have in ms, 2 channel.
-- Returns: for each set how many slots were taken out of it.
-- Safe to repeat? Yes. Two replicas may do it at once, and one that comes back asserts again what it
--          still runs.
-- A clock set back leaves leases that would last for hours: they are cut to the longest allowed, at
-- most 1,000 a set and call; slots held for sessions may outlast those of replicas. A key of another
-- type is deleted, and every replica counts as not asserted until it has asserted again.

local MOST = 1000
-- #include clock
local all, line_all, holds, hold_notes = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel = ARGV[2]
-- #include line
-- #include holds

local function unassert_all()
  local roster = redis.call('HGETALL', KEYS[1])
  for at = 1, #roster, 2 do
    redis.call('HSET', KEYS[1], roster[at], (string.gsub(roster[at + 1], '%d$', '0')))
  end
end

local latest = whole(now + tonumber(ARGV[1]))
local removed = {}
for at = 6, #KEYS do
  local set = KEYS[at]
  local kind = redis.call('TYPE', set).ok
  if kind ~= 'none' and kind ~= 'zset' then
    redis.call('DEL', set)
    unassert_all()
  end
end
free_lapsed()
for at = 6, #KEYS do
  local set = KEYS[at]
  removed[at - 5] = redis.call('ZREMRANGEBYSCORE', set, '-inf', whole(now))
  local overlong = redis.call('ZRANGEBYSCORE', set, '(' .. latest, '+inf', 'LIMIT', 0, MOST)
  for _, id in ipairs(overlong) do
    if not sound('ZSCORE', holds, id) then
      redis.call('ZADD', set, 'XX', latest, id)
    end
  end
end
return removed
