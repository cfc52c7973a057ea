-- What a term has used and what runs in it may use. `count` has both numbers; `open` has one member
-- a reservation, "estimate id", by the end of its lease.

-- So many lapsed reservations are dealt with a call, so that no call takes long.
local LAPSED_MOST = 100

-- The term as it is now; nil where it is not known. Reservations that nobody renews are given back.
local function term_now(count, open, lease)
  local committed = tonumber(redis.call('HGET', sound(count, 'hash'), 'committed') or '')
  if not committed then
    return nil
  end
  local lapsed = redis.call(
    'ZRANGEBYSCORE', sound(open, 'zset'), '-inf', whole(now), 'LIMIT', 0, LAPSED_MOST)
  for _, member in ipairs(lapsed) do
    redis.call('ZREM', open, member)
    redis.call('HINCRBY', count, 'reserved', whole(0 - string.match(member, '^%d+')))
  end
  -- A clock set back must not make a reservation immortal.
  local latest = whole(now + lease)
  local overlong = redis.call('ZRANGEBYSCORE', open, '(' .. latest, '+inf', 'LIMIT', 0, LAPSED_MOST)
  for _, member in ipairs(overlong) do
    redis.call('ZADD', open, 'XX', latest, member)
  end
  local reserved = tonumber(redis.call('HGET', count, 'reserved') or '0')
  if reserved ~= 0 and redis.call('EXISTS', open) == 0 then
    reserved = 0
    redis.call('HSET', count, 'reserved', '0')
  end
  return { committed = committed, reserved = reserved }
end

local function open_member(estimate, id)
  return estimate .. ' ' .. id
end

-- Have a reservation on the books, until its lease ends.
local function book(count, open, estimate, id, lease)
  if redis.call('ZADD', open, whole(now + lease), open_member(estimate, id)) == 1 then
    redis.call('HINCRBY', count, 'reserved', estimate)
  end
  redis.call('PEXPIRE', open, whole(2 * lease))
end
