-- Purpose: give slots back by the ids of their claims, and announce those that somebody wants.
-- KEYS:    1 all, 2 held:<replica>, 3 wanted:all; then six a slot: its pool, tenant and key, and
--          the wanted mark of each.
-- ARGV:    1 channel; then two a slot: id, pool (as the announcement names it).
-- Returns: 1 or 0 a slot: whether it was on the books.
-- Safe to repeat? Yes. An id that is not on the books changes nothing, and nobody else's slot has
--          this id.

local KEYS_EACH, ARGS_EACH = 6, 2

-- A mark is used up by one announcement: whoever is woken and refused again marks again.
local function announce(pool, marks)
  local set = redis.call('MGET', unpack(marks))
  local wanted = false
  for at = 1, #marks do
    if set[at] then
      wanted = true
      redis.call('DEL', marks[at])
    end
  end
  if wanted then
    local message = { pool = pool, ceiling = set[1] and true or false }
    redis.call('PUBLISH', ARGV[1], cjson.encode(message))
  end
end

local found = {}
for number = 0, (#ARGV - 1) / ARGS_EACH - 1 do
  local key = 3 + number * KEYS_EACH
  local id, pool = ARGV[2 + number * ARGS_EACH], ARGV[3 + number * ARGS_EACH]
  local removed = redis.call('ZREM', KEYS[1], id)
  for at = 1, 3 do
    removed = math.max(removed, redis.call('ZREM', KEYS[key + at], id))
  end
  -- Last the index: should one of the sets turn out to be something else, a heartbeat finds there
  -- what is still to be done.
  redis.call('HDEL', KEYS[2], id)
  if removed == 1 then
    announce(pool, { KEYS[3], KEYS[key + 4], KEYS[key + 5], KEYS[key + 6] })
  end
  found[number + 1] = removed
end
return found
