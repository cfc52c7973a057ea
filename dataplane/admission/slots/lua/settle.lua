-- Purpose: end a heartbeat: all that the replica holds is asserted. It may claim from now on if it
--          takes slots by claims only, and is not alone.
-- KEYS:    1 roster.
-- ARGV:    1 replica, 2 its layout, 3 whether it takes slots by claims only (1) or not (0),
--          4 channel.
-- Returns: ok or not_live; the live replicas; those of them whose holdings are on these books.
-- Safe to repeat? Yes.
-- One that is alone makes no claims, so what it takes next will be missing from the books; it is
-- told that it is alone in the same step in which it stops counting as asserted.

-- #include clock

local replica, layout, complete, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local live, records = {}, {}
local roster = redis.call('HGETALL', KEYS[1])
for at = 1, #roster, 2 do
  local heard, ttl, its_layout, asserted =
    string.match(roster[at + 1], '^(%d+) (%d+) (%d+) (%d)$')
  if heard and now - heard < tonumber(ttl) then
    table.insert(live, roster[at])
    records[roster[at]] = { heard, ttl, its_layout, asserted }
  end
end

table.sort(live)

local mine = records[replica]
if not mine then
  return { 'not_live', {}, {} }
end
local before = mine[4]
mine[4] = (complete == '1' and #live > 1) and '1' or '0'
redis.call('HSET', KEYS[1], replica, table.concat(mine, ' '))
if before == '0' and mine[4] == '1' then
  redis.call('PUBLISH', channel, cjson.encode({ replica = replica }))
end

local on_books = {}
for _, name in ipairs(live) do
  if records[name][3] == layout and records[name][4] == '1' then
    table.insert(on_books, name)
  end
end
return { 'ok', live, on_books }
