-- Purpose: have a term's total be at least what the database has: where Redis has lost the term, or
--          never had it, and where tokens were used that it was not told of.
-- KEYS:    two a term: count, open.
-- ARGV:    1 life of a count in ms; then one a term: the total.
-- Returns: committed of each term.
-- Safe to repeat? Yes. A total never falls.

-- #include clock

local answer = {}
for number = 1, #KEYS / 2 do
  local count, open = sound(KEYS[2 * number - 1], 'hash'), sound(KEYS[2 * number], 'zset')
  local total = ARGV[1 + number]
  local committed = tonumber(redis.call('HGET', count, 'committed') or '')
  if not committed then
    -- Whoever has reservations in it writes them down again.
    redis.call('DEL', open)
    redis.call('HSET', count, 'committed', total, 'reserved', '0')
  elseif committed < tonumber(total) then
    redis.call('HSET', count, 'committed', total)
  end
  redis.call('PEXPIRE', count, ARGV[1])
  table.insert(answer, redis.call('HGET', count, 'committed'))
end
return answer
