-- Purpose: renew the leases of reservations that still run, and write down those that are missing.
--          It always writes something, so that it fails where the others would.
-- KEYS:    1 mark; then two a reservation and term: count, open.
-- ARGV:    1 lease in ms; then two a reservation and term: estimate, id.
-- Returns: 1 or 0 for each: whether its term is known. In one that is not, nothing is written down.
-- Safe to repeat? Yes.

-- #include clock
-- #include terms

local lease = tonumber(ARGV[1])
redis.call('SET', sound(KEYS[1], 'string'), '1', 'PX', whole(lease))
local known = {}
for number = 1, (#KEYS - 1) / 2 do
  local count, open = sound(KEYS[2 * number], 'hash'), sound(KEYS[2 * number + 1], 'zset')
  known[number] = redis.call('EXISTS', count)
  if known[number] == 1 then
    book(count, open, ARGV[2 * number], ARGV[2 * number + 1], lease)
  end
end
return known
