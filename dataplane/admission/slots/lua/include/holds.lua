-- Slots held for the next step of a session. A hold stands in the sets of its slot as a claim does,
-- under an id of its own, and with its end in `holds` and in its pool's; in the notes it has the
-- replica that made it and where it stands: keys (pool, group, tenant, key, served, the lines at
-- pool, tenant and key, the pool's holds) and names (pool, group, tenant, key). What ends it is
-- told on the channel. Needs `clock`, `line`, and of the script: all, line_all, holds, hold_notes,
-- channel.

-- At most so many that have lapsed are freed by one call, and no hold is longer than LONGEST.
local AT_ONCE, LONGEST = 64, 60000
-- A pool counts as starving for so long after a claim has said so.
local STARVING = 1000
-- A session's record lives so long while a step of it may run.
local RUNNING = 3600000

-- A key lives as long as the leases in it.
local function keep(key, lease)
  if redis.call('PTTL', key) < lease then
    redis.call('PEXPIRE', key, whole(2 * lease))
  end
end

-- What the order goes by in this pool, after a slot of it is free.
local function settle(served, sets, names, refund)
  local fields = { 'g:' .. names[2], 't:' .. names[3], 'k:' .. names[4] }
  local values = sound('HMGET', served, unpack(fields))
  local back = refund ~= '' and cjson.decode(refund) or { 0, 0, 0 }
  for at = 1, 3 do
    if values[at] then
      local score = served_of(values[at], 0)
      local taken = redis.call('ZCARD', sets[at + 1])
      local value = string.format('%.17g %d', math.max(0, score - back[at]), taken)
      redis.call('HSET', served, fields[at], value)
    end
  end
end

-- The one of those who know already that comes first in a line.
local function first_to_know(places, know)
  local best
  for _, each in ipairs(places) do
    if know[each.place.name] and (not best or comes_before(each.rank, best.rank, 0)) then
      best = each
    end
  end
  return best
end

-- Those who stand in a line by the order; those who go by none are told.
local function announce(pool, line)
  local places, is_unordered = waiting(pool, line)
  if is_unordered then
    local message = { pool = pool.name, ceiling = line == line_all }
    redis.call('PUBLISH', channel, cjson.encode(message))
  end
  return places
end

-- Call whoever is to have a slot of a pool, or of another whose turn it is at the ceiling, unless
-- one who knows already would go before it.
local function call_next(own, know)
  local pools = in_turn(own)
  local known = first_to_know(own.places, know)
  for _, passed in ipairs({ false, true }) do
    for _, pool in ipairs(pools) do
      local best = first_in(pool, passed)
      if pool == own and known and not (best and comes_before(best.rank, known.rank, SAME)) then
        return
      elseif best then
        call(pool.line, channel, best)
        return
      end
    end
  end
end

-- A slot is free: `keys` and `names` as in a hold's note.
local function is_free(keys, names, refund, know)
  local pool = { name = names[1], line = keys[6], served = keys[5], set = keys[1] }
  settle(pool.served, keys, names, refund)
  wants_again(pool)
  for _, each in ipairs({ line_all, keys[7], keys[8] }) do
    announce(pool, each)
  end
  pool.places = announce(pool)
  call_next(pool, know)
  -- A pool that nobody uses forgets what it served.
  if #pool.places == 0 and redis.call('ZCARD', pool.set) == 0 then
    redis.call('DEL', pool.served)
  end
end

-- A hold is off the books. Its note, if there was one.
local function drop_hold(id, why)
  local text = sound('HGET', hold_notes, id)
  sound('ZREM', holds, id)
  redis.pcall('ZREM', all, id)
  if not text then
    return nil
  end
  redis.call('HDEL', hold_notes, id)
  local note = cjson.decode(text)
  -- Should one of the sets be something else, the hold is off the books all the same.
  for at = 1, 4 do
    redis.pcall('ZREM', note.keys[at], id)
  end
  sound('ZREM', note.keys[9], id)
  local message = { hold = id, replica = note.replica, why = why }
  redis.call('PUBLISH', channel, cjson.encode(message))
  return note
end

local function free_hold(id, why)
  local note = drop_hold(id, why)
  if note then
    is_free(note.keys, note.names, '', {})
  end
end

-- Whether a hold is in every set it should be. If one was lost somebody else may have its slot.
local function is_whole(id)
  local text = sound('HGET', hold_notes, id)
  if not text then
    return false
  end
  local keys = cjson.decode(text).keys
  for _, set in ipairs({ all, keys[1], keys[2], keys[3], keys[4] }) do
    if type(redis.pcall('ZSCORE', set, id)) ~= 'string' then
      return false
    end
  end
  return true
end

-- A hold that would last for longer than any may has a clock that was set back to thank for it.
local function free_lapsed()
  local lapsed = sound('ZRANGEBYSCORE', holds, '-inf', whole(now), 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(lapsed) do
    free_hold(id, 'expire')
  end
  local after = '(' .. whole(now + LONGEST)
  local overlong = sound('ZRANGEBYSCORE', holds, after, '+inf', 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(overlong) do
    free_hold(id, 'expire')
  end
end

-- Of a pool's holds no more than `most` stay, which may be less than none; those that end first go.
local function free_beyond(pool_holds, most, why)
  local number = sound('ZCARD', pool_holds) - most
  if number > 0 then
    for _, id in ipairs(redis.call('ZRANGE', pool_holds, 0, number - 1)) do
      free_hold(id, why)
      redis.call('ZREM', pool_holds, id)
    end
  end
end
