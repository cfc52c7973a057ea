-- Purpose: a replica is gone for good, and says so. It has released what it knew it held; the slots
--          it holds for sessions are freed.
-- KEYS:    1 roster, 2 held:<replica>, 3 all, 4 line:all, 5 holds, 6 notes of holds.
-- ARGV:    1 replica, 2 channel.
-- Returns: id and note of each holding the books still have for it, in turn: to be released.
-- Safe to repeat? Yes.

-- #include clock
local all, line_all, holds, hold_notes = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local channel = ARGV[2]
-- #include line
-- #include holds

for _, id in ipairs(sound('ZRANGE', holds, 0, -1)) do
  local note = sound('HGET', hold_notes, id)
  if note and cjson.decode(note).replica == ARGV[1] then
    free_hold(id, 'freed')
  end
end
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  redis.call('PUBLISH', channel, cjson.encode({ replica = ARGV[1] }))
end
return redis.call('HGETALL', KEYS[2])
