-- Purpose: replace a reservation by the tokens really used.
-- KEYS:    1 its tenant's minute; then two a term: count, open.
-- ARGV:    1 id, 2 estimate, 3 tokens used, 4 tokens a minute when it was reserved (empty: nothing
--          was taken from the minute), 5 life of a count in ms.
-- Returns: for each term whether the reservation was on the books (1 or 0), and committed, empty
--          where the term is not known.
-- Safe to repeat? For terms yes: what is not on the books changes nothing, and what it used comes by
--          way of the database. For the minute no: it is sent once.

-- #include clock
-- #include minute
-- #include terms

local id, estimate, used = ARGV[1], ARGV[2], ARGV[3]
if ARGV[4] ~= '' then
  -- The limit may have moved meanwhile: the bucket knows its size by now. A forgotten one was full.
  local minute = minute_now(KEYS[1], nil)
  if not minute then
    local size = tonumber(ARGV[4])
    minute = { size = size, level = size * UNITS, at = now }
  end
  local capacity = minute.size * UNITS
  local level = minute.level + (tonumber(estimate) - tonumber(used)) * UNITS
  if tonumber(used) > tonumber(estimate) then
    minute.level = math.max(level, math.min(minute.level, -DEBT_MINUTES * capacity))
  else
    minute.level = math.min(level, capacity)
  end
  keep_minute(KEYS[1], minute)
end

local answer = {}
for at = 2, #KEYS, 2 do
  local count, open = KEYS[at], KEYS[at + 1]
  local found = redis.call('ZREM', sound(open, 'zset'), open_member(estimate, id))
  if found == 1 and redis.call('EXISTS', sound(count, 'hash')) == 1 then
    redis.call('HINCRBY', count, 'reserved', whole(0 - estimate))
    redis.call('HINCRBY', count, 'committed', used)
    redis.call('PEXPIRE', count, ARGV[5])
  end
  table.insert(answer, found)
  table.insert(answer, redis.call('HGET', count, 'committed') or '')
end
return answer
