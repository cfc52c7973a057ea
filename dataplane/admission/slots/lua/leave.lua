-- Purpose: a replica is gone for good, and says so. It has released what it knew it held.
-- KEYS:    1 roster, 2 held:<replica>.
-- ARGV:    1 replica, 2 channel.
-- Returns: id and note of each holding the books still have for it, in turn: to be released.
-- Safe to repeat? Yes.

if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  redis.call('PUBLISH', ARGV[2], cjson.encode({ replica = ARGV[1] }))
end
return redis.call('HGETALL', KEYS[2])
