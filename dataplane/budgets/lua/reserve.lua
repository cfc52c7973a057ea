-- Purpose: take a request's estimate from its tenant's minute and from every term it counts in: from
--          all of them, or from none.
-- KEYS:    as check.
-- ARGV:    as check; at the end the id of the reservation.
-- Returns: as check; the level of the minute after the estimate was taken, if it was.
-- Safe to repeat? No: the minute would pay twice. It is sent once. Should its answer be lost, the
--          minute refills and the reservation lapses.

-- #include clock
-- #include minute
-- #include terms
-- #include look

local passes, minute, answer = look()
if not passes then
  return answer
end
local estimate, lease, id = ARGV[1], tonumber(ARGV[3]), ARGV[#ARGV]
if minute then
  minute.level = minute.level - tonumber(estimate) * UNITS
  keep_minute(KEYS[1], minute)
  answer[2] = whole(minute.level)
end
for at = 2, #KEYS, 2 do
  book(KEYS[at], KEYS[at + 1], estimate, id, lease)
end
return answer
