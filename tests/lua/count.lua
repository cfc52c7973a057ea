-- Purpose: count what is in a test's sorted sets, and the notes of slots held for sessions.
-- KEYS:    none.
-- ARGV:    1 pattern of the test's keys.
-- Returns: name and count of each set, in turn.
-- Safe to repeat? Yes.

local counts = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  if redis.call('TYPE', key).ok == 'zset' then
    table.insert(counts, key)
    table.insert(counts, redis.call('ZCARD', key))
  elseif string.sub(key, -11) == ':hold_notes' then
    table.insert(counts, key)
    table.insert(counts, redis.call('HLEN', key))
  end
end
return counts
