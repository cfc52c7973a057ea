-- Purpose: give slots back by the ids of their claims, and call whose turn it is at each limit that
--          had kept somebody waiting.
-- KEYS:    1 all, 2 held:<replica>, 3 line:all; then eight a slot: its pool, group, tenant and key,
--          what is served in its pool, and the lines at its pool, tenant and key.
-- ARGV:    1 channel, 2 replica; then seven a slot: id, pool's, group's, tenant's and key's name, what
--          group, tenant and key are given back of their charge (may be empty), and whether the
--          replica claims in this pool next (1 or 0).
-- Returns: 1 or 0 a slot: whether it was on the books.
-- Safe to repeat? Yes. An id that is not on the books changes nothing, and nobody else's slot has
--          this id.

-- #include clock
-- #include line

local KEYS_EACH, ARGS_EACH = 8, 7

-- What the order goes by in this pool, after a slot of it is free.
local function settle(served, sets, names, refund)
  local fields = { 'g:' .. names[1], 't:' .. names[2], 'k:' .. names[3] }
  local values = hash('HMGET', served, unpack(fields))
  local back = refund ~= '' and cjson.decode(refund) or { 0, 0, 0 }
  for at = 1, 3 do
    if values[at] then
      local score = served_of(values[at], 0)
      local taken = redis.call('ZCARD', sets[at])
      local value = string.format('%.17g %d', math.max(0, score - back[at]), taken)
      redis.call('HSET', served, fields[at], value)
    end
  end
end

-- Tell whoever comes first in a line, unless it is among those who know already.
local function announce(line, served, pool, know)
  local places, is_unordered = waiting(line, served, pool)
  if is_unordered then
    local message = { pool = pool, ceiling = line == KEYS[3] }
    redis.call('PUBLISH', ARGV[1], cjson.encode(message))
  end
  local best = first(places) or first(places, nil, true)
  if best and not know[best.place.name] then
    call(line, ARGV[1], best, second(best))
    know[best.place.name] = true
  end
  return best ~= nil
end

local found = {}
for number = 0, (#ARGV - 2) / ARGS_EACH - 1 do
  local k = 3 + number * KEYS_EACH
  local id, pool, group, tenant, key, refund, claims =
    unpack(ARGV, 3 + number * ARGS_EACH, 2 + (number + 1) * ARGS_EACH)
  local removed = redis.call('ZREM', KEYS[1], id)
  for at = 1, 4 do
    removed = math.max(removed, redis.call('ZREM', KEYS[k + at], id))
  end
  -- Last the index: should one of the sets turn out to be something else, a heartbeat finds there
  -- what is still to be done.
  redis.call('HDEL', KEYS[2], id)
  if removed == 1 then
    local served = KEYS[k + 5]
    settle(served, { KEYS[k + 2], KEYS[k + 3], KEYS[k + 4] }, { group, tenant, key }, refund)
    local know, is_wanted = { [ARGV[2]] = claims == '1' }, false
    for _, line in ipairs({ KEYS[k + 6], KEYS[3], KEYS[k + 7], KEYS[k + 8] }) do
      is_wanted = announce(line, served, pool, know) or is_wanted
    end
    -- A pool that nobody uses forgets what it served.
    if not is_wanted and redis.call('ZCARD', KEYS[k + 1]) == 0 then
      redis.call('DEL', served)
    end
  end
  found[number + 1] = removed
end
return found
