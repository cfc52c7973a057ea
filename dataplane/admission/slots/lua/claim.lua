-- Purpose: take slots, each under the id of its claim: all four limits or nothing. Limits are the
--          configured ones and are looked at in order: pool, ceiling, tenant, key. What refuses is
--          marked as wanted, so that a release of it is announced. A lapsed lease counts as gone.
-- KEYS:    1 roster, 2 all, 3 held:<replica>, 4 wanted:all; then six a claim: its pool, tenant and
--          key, and the wanted mark of each.
-- ARGV:    1 replica, 2 life of a mark in ms; then six a claim: id, what to note about it, pool
--          size, ceiling, tenant's cap, key's cap (a cap may be empty: none).
-- Returns: a list a claim, its first item one of granted, not_live, pool, ceiling, tenant, key.
-- Safe to repeat? Yes. An id that is on the books is granted and nothing changes.

local PER_CLAIM = 6
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- A key lives as long as the leases in it.
local function keep(key, lease)
  if redis.call('PTTL', key) < lease then
    redis.call('PEXPIRE', key, whole(2 * lease))
  end
end

local function is_full(key, limit)
  if redis.call('ZCARD', key) < limit then
    return false
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
  return redis.call('ZCARD', key) >= limit
end

-- Nobody takes a slot whose own holdings may be missing from the books.
local function lease_of(replica)
  local record = redis.call('HGET', KEYS[1], replica) or ''
  local heard, ttl, asserted = string.match(record, '^(%d+) (%d+) %d+ (%d)$')
  if heard and asserted == '1' and now - heard < tonumber(ttl) then
    return tonumber(ttl)
  end
  return nil
end

local replica, mark_life = ARGV[1], ARGV[2]
local lease = lease_of(replica)

local function claim(keys_at, args_at)
  local pool, tenant, key = KEYS[keys_at + 1], KEYS[keys_at + 2], KEYS[keys_at + 3]
  local id, note = ARGV[args_at + 1], ARGV[args_at + 2]
  if not lease then
    return 'not_live'
  end
  local held_until = redis.call('ZSCORE', pool, id)
  if held_until and tonumber(held_until) > now then
    return 'granted'
  end
  local limits = {
    { 'pool', pool, ARGV[args_at + 3], KEYS[keys_at + 4] },
    { 'ceiling', KEYS[2], ARGV[args_at + 4], KEYS[4] },
    { 'tenant', tenant, ARGV[args_at + 5], KEYS[keys_at + 5] },
    { 'key', key, ARGV[args_at + 6], KEYS[keys_at + 6] },
  }
  for _, limit in ipairs(limits) do
    local name, set, most, mark = unpack(limit)
    if most ~= '' and is_full(set, tonumber(most)) then
      redis.call('SET', mark, '1', 'PX', mark_life)
      return name
    end
  end
  -- First the index: should one of the sets turn out to be something else, a heartbeat finds there
  -- what was begun.
  redis.call('HSET', KEYS[3], id, note)
  keep(KEYS[3], lease)
  for _, limit in ipairs(limits) do
    redis.call('ZADD', limit[2], whole(now + lease), id)
    keep(limit[2], lease)
  end
  return 'granted'
end

local answers = {}
for number = 0, (#ARGV - 2) / PER_CLAIM - 1 do
  answers[number + 1] = { claim(4 + number * PER_CLAIM, 2 + number * PER_CLAIM) }
end
return answers
