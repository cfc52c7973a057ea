-- The bucket of a tenant's tokens a minute, number for number as bucket.py has it: units of 1/60,000
-- token, gained `size` a millisecond. All whole numbers below 2^53, as long as sizes are at most
-- 10^11 tokens.

local UNITS, DEBT_MINUTES = 60000, 60
-- A clock that goes back by more than this was set; by less, it only drifted.
local SET_BACK_MS = 1000

-- Exact for whole numbers from 0 to 2^53, which a division and a floor are not.
local function quotient(number, by)
  return (number - math.fmod(number, by)) / by
end

-- floor(level * size / old), without the product, which may be too large: level = whole * old + rest.
local function scaled(level, size, old)
  local rest = math.fmod(level, old)
  local result, over = 0, 0
  for shift = 24, 0, -12 do
    local digit = math.fmod(quotient(size, 2 ^ shift), 4096)
    if shift == 24 then
      digit = quotient(size, 2 ^ shift)
    end
    over = over * 4096 + rest * digit
    result = result * 4096 + quotient(over, old)
    over = math.fmod(over, old)
  end
  return quotient(level, old) * size + result
end

-- What is in the bucket now, under the size in force; `size` nil: under the size it has.
local function minute_now(key, size)
  local stored = redis.call('HMGET', sound(key, 'hash'), 'size', 'level', 'at')
  local had, level, at = tonumber(stored[1]), tonumber(stored[2]), tonumber(stored[3])
  if not (had and level and at) then
    return size and { size = size, level = size * UNITS, at = now }
  end
  size = size or had
  if now > at then
    level = math.min(had * UNITS, level + had * (now - at))
    at = now
  elseif at - now > SET_BACK_MS then
    at = now
  end
  if size ~= had and level > 0 then
    level = scaled(level, size, had)
  end
  return { size = size, level = level, at = at, resized = size ~= had }
end

-- A bucket that is full again is forgotten: a new one would be the same.
local function keep_minute(key, minute)
  local missing = minute.size * UNITS - minute.level
  if missing <= 0 then
    redis.call('DEL', key)
    return
  end
  redis.call('HSET', key, 'size', whole(minute.size), 'level', whole(minute.level),
    'at', whole(minute.at))
  local full_in = math.ceil(missing / minute.size) + (minute.at - now)
  redis.call('PEXPIRE', key, whole(full_in + SET_BACK_MS))
end
