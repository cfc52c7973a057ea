-- Purpose: have Redis's clock moved, as it looks from the leases: every time written down moves the
--          other way, and every key's life with it.
-- ARGV:    1 by how many ms, forward if positive.

local by = tonumber(ARGV[1])
for _, name in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', name).ok
  if kind == 'zset' then
    local entries = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')
    for at = 1, #entries, 2 do
      redis.call('ZINCRBY', name, string.format('%.0f', 0 - by), entries[at])
    end
  elseif kind == 'hash' and string.find(name, 'roster', 1, true) then
    local records = redis.call('HGETALL', name)
    for at = 1, #records, 2 do
      local heard, rest = string.match(records[at + 1], '^(%d+)( .*)$')
      redis.call('HSET', name, records[at], string.format('%.0f', heard - by) .. rest)
    end
  end
  local life = redis.call('PTTL', name)
  if life > 0 then
    redis.call('PEXPIRE', name, string.format('%.0f', math.max(1, life - by)))
  end
end
