-- Purpose: write down that a replica lives, forget replicas that do not, and read what the books
--          have for this one. The first of its three steps; assert and settle follow.
-- KEYS:    1 roster, 2 held:<replica>.
-- ARGV:    1 replica, 2 its time to live in ms, 3 its layout, 4 whether it takes slots by claims
--          only (1) or not (0), 5 channel.
-- Returns: 1 if the books had not known it as live, else 0; the longest time to live of a live
--          replica in ms; then id and note of each of its holdings, in turn.
-- Safe to repeat? Yes. A repeat moves the moment it was last heard of.
-- A clock set back must not make anyone immortal: nobody was heard of later than now. A clock set
-- forward makes everyone lapse, and everyone comes back with its next heartbeat.

-- #include clock

-- Something else under one of our names can only be an accident; it is put right by starting anew.
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= 'hash' then
    redis.call('DEL', key)
  end
end

local replica, ttl, layout, complete = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local lapsed, asserted, longest = 1, '0', ttl
local roster = redis.call('HGETALL', KEYS[1])
for at = 1, #roster, 2 do
  local name = roster[at]
  local heard, its_ttl, its_layout, its_asserted =
    string.match(roster[at + 1], '^(%d+) (%d+) (%d+) (%d)$')
  if not heard or now - heard >= tonumber(its_ttl) then
    redis.call('HDEL', KEYS[1], name)
  else
    longest = math.max(longest, tonumber(its_ttl))
    if tonumber(heard) > now then
      local record = { whole(now), its_ttl, its_layout, its_asserted }
      redis.call('HSET', KEYS[1], name, table.concat(record, ' '))
    end
    if name == replica then
      lapsed = 0
      if complete == '1' and its_layout == layout then
        asserted = its_asserted
      end
    end
  end
end

redis.call('HSET', KEYS[1], replica, table.concat({ whole(now), whole(ttl), layout, asserted }, ' '))
redis.call('PEXPIRE', KEYS[1], whole(2 * longest))
if redis.call('PTTL', KEYS[2]) < ttl then
  redis.call('PEXPIRE', KEYS[2], whole(2 * ttl))
end
if lapsed == 1 then
  redis.call('PUBLISH', ARGV[5], cjson.encode({ replica = replica }))
end

local answer = redis.call('HGETALL', KEYS[2])
table.insert(answer, 1, longest)
table.insert(answer, 1, lapsed)
return answer
