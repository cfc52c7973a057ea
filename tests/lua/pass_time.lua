-- Purpose: let time pass for a test's keys, and only as much as the test says: everything they note
--          of the time moves back by it, and forward by the real time since the last call.
-- KEYS:    1 roster, 2 where to write down what time it is until the next call.
-- ARGV:    1 pattern of the test's keys, 2 ms to pass, 3 the last answer, or 0 at first.
-- Returns: the server's clock in ms.
-- Safe to repeat? No.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = tonumber(ARGV[3])
local shift = tonumber(ARGV[2])
if last > 0 then
  shift = shift - (now - last)
end

local function whole(number)
  return string.format('%.0f', number)
end

redis.call('DEL', KEYS[2])
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    local leases = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for at = 1, #leases, 2 do
      redis.call('ZADD', key, whole(leases[at + 1] - shift), leases[at])
    end
  elseif key == KEYS[1] then
    local roster = redis.call('HGETALL', key)
    for at = 1, #roster, 2 do
      local heard, rest = string.match(roster[at + 1], '^(%d+)(.*)$')
      redis.call('HSET', key, roster[at], whole(heard - shift) .. rest)
    end
  elseif kind == 'hash' and string.find(key, ':line:', 1, true) then
    local places = redis.call('HGETALL', key)
    for at = 1, #places, 2 do
      local since, called, passed, rest = string.match(places[at + 1], '^(%d+) (%d+) (%d+) (.*)$')
      if since then
        called = called == '0' and called or whole(math.min(now, called - shift))
        passed = passed == '0' and passed or whole(math.min(now, passed - shift))
        local record = { whole(math.min(now, since - shift)), called, passed, rest }
        redis.call('HSET', key, places[at], table.concat(record, ' '))
      end
    end
  end
  local left = redis.call('PTTL', key)
  if kind == 'string' and string.find(key, ':1:s%a+:') then
    local finish, rest = string.match(redis.call('GET', key), '^(%d+)(.*)$')
    redis.call('SET', key, whole(finish - shift) .. rest, 'KEEPTTL')
  end
  if left > 0 then
    redis.call('PEXPIRE', key, whole(left - shift))
  end
end
redis.call('SET', KEYS[2], now)
return now
