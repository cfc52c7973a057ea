-- Purpose: have on the books what runs, limits or not, and renew its lease.
-- KEYS:    1 roster, 2 all, 3 held:<replica>; then four a holding: its pool, group, tenant and key.
-- ARGV:    1 replica; then two a holding: id, what to note about it.
-- Returns: ok or not_live (then nothing is done); then the ids that had been missing.
-- Safe to repeat? Yes.
-- A key of another type is deleted. What others had there is gone with it, so every replica counts
-- as not asserted, and none is granted anything, until it has asserted again.

local KEYS_EACH, ARGS_EACH = 4, 2
-- #include clock

local function unassert_all()
  local roster = redis.call('HGETALL', KEYS[1])
  for at = 1, #roster, 2 do
    redis.call('HSET', KEYS[1], roster[at], (string.gsub(roster[at + 1], '%d$', '0')))
  end
end

local record = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local heard, ttl = string.match(record, '^(%d+) (%d+) %d+ %d$')
if not heard or now - heard >= tonumber(ttl) then
  return { 'not_live' }
end
local lease = tonumber(ttl)

local function add(set, id)
  local added = redis.pcall('ZADD', set, whole(now + lease), id)
  if type(added) == 'table' then
    redis.call('DEL', set)
    unassert_all()
    added = redis.call('ZADD', set, whole(now + lease), id)
  end
  if redis.call('PTTL', set) < lease then
    redis.call('PEXPIRE', set, whole(2 * lease))
  end
  return added
end

local answer = { 'ok' }
for number = 0, (#ARGV - 1) / ARGS_EACH - 1 do
  local key = 3 + number * KEYS_EACH
  local id, note = ARGV[2 + number * ARGS_EACH], ARGV[3 + number * ARGS_EACH]
  local missing = redis.call('HSET', KEYS[3], id, note) + add(KEYS[2], id)
  for at = 1, KEYS_EACH do
    missing = missing + add(KEYS[key + at], id)
  end
  if missing > 0 then
    table.insert(answer, id)
  end
end
if #ARGV > 1 and redis.call('PTTL', KEYS[3]) < lease then
  redis.call('PEXPIRE', KEYS[3], whole(2 * lease))
end
return answer
