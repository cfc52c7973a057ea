-- Purpose: tell whether a request of so many tokens would pass now, and take nothing.
-- KEYS:    1 its tenant's minute; then two a term it counts in: count, open.
-- ARGV:    1 estimate, 2 tokens a minute (empty: no such budget), 3 lease of reservations in ms;
--          then one a term: the tokens allowed in it.
-- Returns: 1 or 0, whether it passes; the level of the minute in units, empty without one; then
--          committed and reserved of each term, empty where the term is not known.
-- Safe to repeat? Yes.

-- #include clock
-- #include minute
-- #include terms
-- #include look

local _, _, answer = look()
return answer
