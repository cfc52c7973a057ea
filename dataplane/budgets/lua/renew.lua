-- Purpose: renew the leases of reservations that still run, and write down those that are missing.
--          It always writes something, so that it fails where the others would.
-- KEYS:    1 mark; then two a reservation and term: count, open.
-- ARGV:    1 lease in ms; then two a reservation and term: estimate, id.
-- Returns: 1 or 0 for each: whether it had been missing. In a term that is not known it stays so.
-- Safe to repeat? Yes.

-- #include clock
-- #include terms

local lease = tonumber(ARGV[1])
redis.call('SET', sound(KEYS[1], 'string'), '1', 'PX', whole(lease))
local missing = {}
for number = 1, (#KEYS - 1) / 2 do
  local count, open = sound(KEYS[2 * number], 'hash'), sound(KEYS[2 * number + 1], 'zset')
  local estimate, id = ARGV[2 * number], ARGV[2 * number + 1]
  if redis.call('EXISTS', count) == 1 then
    missing[number] = book(count, open, estimate, id, lease)
  else
    missing[number] = 0
  end
end
return missing
