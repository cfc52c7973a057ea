-- Purpose: give slots back by the ids of their claims, and call whose turn it is at each limit that
--          had kept somebody waiting; or hold a slot for its session's next step instead, and say
--          so: it may wait already, on another replica. The id of a hold ends that.
-- KEYS:    1 all, 2 held:<replica>, 3 line:all, 4 holds, 5 notes of holds; then eleven a slot: its
--          pool, group, tenant and key, what is served in its pool, the lines at its pool, tenant
--          and key, its pool's holds, that its pool starves, and its session.
-- ARGV:    1 channel, 2 replica; then eight a slot: id, pool's, group's, tenant's and key's name, what
--          group, tenant and key are given back of their charge (may be empty), whether the
--          replica claims in this pool next (1 or 0), and of a session's step (else empty): hold's
--          id, ms since the step arrived, ms a hold lasts, ms the session is remembered, whether to
--          hold (1 or 0), most holds of the pool, most of the session in a row, pool size, ceiling,
--          tenant's cap, key's cap (-1: none).
-- Returns: what came of each: gone (it was not on the books), released, held, or refused (released,
--          and held but for a limit).
-- Safe to repeat? Yes. An id that is not on the books changes nothing, and nobody else's slot has
--          this id.

-- #include clock
local all, line_all, holds, hold_notes = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local channel = ARGV[1]
-- #include line
-- #include holds

local KEYS_EACH, ARGS_EACH = 11, 8

local function is_over(set, most)
  return most >= 0 and redis.call('ZCARD', set) > most
end

local function is_starving(mark)
  local at = redis.pcall('GET', mark)
  at = type(at) == 'string' and tonumber(at)
  return at and now - at < STARVING
end

-- Whether anybody waits for a slot of a pool, or under the ceiling.
local function is_contended(line)
  for _, pool in ipairs(in_turn({ name = '', line = line })) do
    if is_waited_for(pool.line) then
      return true
    end
  end
  return is_waited_for(line_all)
end

-- Whether the slot of a step that has just ended is to be held: released, held or refused. Notes when
-- the session's step finished, and how many slots in a row were held for it while others waited.
local function judged(keys, step)
  local id, age, ms, life, wants, most, jumps, size, ceiling, tenant_cap, key_cap = unpack(step)
  local session = keys[11]
  local record = redis.pcall('GET', session)
  local finish, streak = string.match(type(record) == 'string' and record or '', '^(%d+) (%d+)$')
  streak = tonumber(streak) or 0
  local outcome, in_a_row = 'released', 0
  if wants == 1 and ms > 0 and finish and math.abs(now - age - finish) <= ms then
    local others_wait = is_contended(keys[6])
    outcome = 'refused'
    if
      sound('ZCARD', keys[9]) < most
      and not redis.call('ZSCORE', keys[9], id)
      and not is_starving(keys[10])
      and not (is_over(keys[1], size) or is_over(all, ceiling))
      and not (is_over(keys[3], tenant_cap) or is_over(keys[4], key_cap))
      and not (others_wait and streak >= jumps)
    then
      outcome = 'held'
      in_a_row = others_wait and streak + 1 or 0
    end
  end
  redis.call('SET', session, whole(now) .. ' ' .. whole(in_a_row), 'PX', whole(life))
  return outcome
end

local function hold(id, ms, keys, names, replica)
  for _, set in ipairs({ all, keys[1], keys[2], keys[3], keys[4] }) do
    redis.call('ZADD', set, whole(now + ms), id)
    keep(set, ms)
  end
  local note = { replica = replica, names = names, keys = { unpack(keys, 1, 9) } }
  sound('HSET', hold_notes, id, cjson.encode(note))
  keep(hold_notes, LONGEST)
  for _, set in ipairs({ holds, keys[9] }) do
    sound('ZADD', set, whole(now + ms), id)
    keep(set, LONGEST)
  end
  redis.call('PUBLISH', channel, cjson.encode({ held = id }))
end

free_lapsed()
local found = {}
for number = 0, (#ARGV - 2) / ARGS_EACH - 1 do
  local keys = { unpack(KEYS, 6 + number * KEYS_EACH, 5 + (number + 1) * KEYS_EACH) }
  local id, pool, group, tenant, key, refund, claims, step =
    unpack(ARGV, 3 + number * ARGS_EACH, 2 + (number + 1) * ARGS_EACH)
  local names = { pool, group, tenant, key }
  local outcome = 'gone'
  if sound('ZSCORE', keys[9], id) then
    free_hold(id, 'freed')
    outcome = 'released'
  elseif redis.call('ZSCORE', keys[1], id) then
    outcome = 'released'
    if step ~= '' then
      step = cjson.decode(step)
      outcome = judged(keys, step)
      if outcome == 'held' then
        hold(step[1], step[3], keys, names, ARGV[2])
      end
    end
  end
  local removed = redis.call('ZREM', all, id)
  for at = 1, 4 do
    removed = math.max(removed, redis.call('ZREM', keys[at], id))
  end
  -- Last the index: should one of the sets turn out to be something else, a heartbeat finds there
  -- what is still to be done.
  redis.call('HDEL', KEYS[2], id)
  if removed == 1 and outcome ~= 'held' then
    is_free(keys, names, refund, { [ARGV[2]] = claims == '1' })
    outcome = outcome == 'gone' and 'released' or outcome
  end
  found[number + 1] = outcome
end
return found
