-- Purpose: take slots, each under the id of its claim: all four limits or nothing, and only if it is
--          nobody else's turn. Limits are the configured ones and are looked at in order: pool,
--          ceiling, tenant, key. A lapsed lease counts as gone. Whoever is refused takes a place in
--          the line at what refused it; whose turn it is instead is called. A slot that is held
--          for the claim's session is taken at any turn and counts against the limits already: it is
--          freed if one of them has fallen below what is taken up.
-- KEYS:    1 roster, 2 all, 3 held:<replica>, 4 line:all, 5 holds, 6 notes of holds; then eleven a
--          claim: its pool, group, tenant and key, what is served in its pool, the lines at its
--          pool, tenant and key, its pool's holds, that its pool starves, and its session.
-- ARGV:    1 replica, 2 channel; then fourteen a claim: id, what to note about it, pool's name, pool size,
--          ceiling, tenant's cap, key's cap (a cap may be empty: none), how it stands and how those
--          stand that may be the replica's next in that pool (as in include/line, may be empty), and
--          what its group, tenant and key are charged, each in tokens a unit of its weight; the id
--          of the hold it may take (may be empty), whether it wants that and no other slot (1 or 0),
--          how many of the pool's slots may be held at most, and whether a request has waited in
--          the pool for too long to be passed (1 or 0): it counts unless tenant or key of the claim
--          run as many as they may, since what is held there would do nobody good.
-- Returns: a list a claim: one of granted, not_live, not_your_turn, no_hold or the limit that is
--          reached; if granted whether there is a slot for the replica's next (1 or 0), if a limit
--          is reached in how many ms a slot is not held any more (0: none is); the limit at which
--          it was not its turn, or held if it took such a slot, and the tenant and key whose turn
--          it is if they are the replica's own. Then, for one that goes by the order, the scores of
--          group, tenant and key, and the slots that group and tenant have taken.
-- Safe to repeat? Yes. An id that is on the books is granted and nothing changes.

-- #include clock
-- #include line
local all, line_all, holds, hold_notes = KEYS[2], KEYS[4], KEYS[5], KEYS[6]
local channel = ARGV[2]
-- #include holds

local KEYS_EACH, ARGS_EACH = 11, 14

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

local replica = ARGV[1]
local lease = lease_of(replica)

local function answered(answer, number, by, rank, own)
  local told = { answer, number, by, own and own.tenant or '', own and own.key or '' }
  if not rank then
    return told
  end
  for at = 2, 4 do
    table.insert(told, string.format('%.17g', rank[at]))
  end
  table.insert(told, whole(rank.taken[1]))
  table.insert(told, whole(rank.taken[2]))
  return told
end

-- Who is to go before one of the replica's own at a limit, if anybody is. None of its own: anybody.
local function ahead(line, served, pool, rank)
  local places, _, turns = waiting(line, served, pool)
  local best = first(places, replica)
  if not rank then
    return best or first(places, replica, true)
  end
  rank.turn = turns[pool] or 0
  return best and comes_before(best.rank, rank, SAME) and best
end

-- Stand in a line for those that are named, or for nobody.
local function stand_for(line, text)
  if text == '' then
    step_out(line, replica)
  else
    stand(line, replica, text)
  end
end

local function both(one, other)
  if one == '' or other == '' then
    return one .. other
  end
  return string.sub(one, 1, -2) .. ',' .. string.sub(other, 2)
end

-- Write down a node's score and the slots it has taken.
local function count(served, node, score, set)
  redis.call('HSET', served, node, string.format('%.17g %d', score, redis.call('ZCARD', set)))
end

local function best_of_others(served, pool, others)
  return others ~= '' and best_of(served, pool, others, now, {})
end

local function take(id, note, sets)
  -- First the index: should one of the sets turn out to be something else, a heartbeat finds there
  -- what was begun.
  redis.call('HSET', KEYS[3], id, note)
  keep(KEYS[3], lease)
  for _, set in ipairs({ sets[1], all, sets[2], sets[3], sets[4] }) do
    redis.call('ZADD', set, whole(now + lease), id)
    keep(set, lease)
  end
end

local function charge(rank, charges, served, group, tenant, key)
  local charged = cjson.decode(charges)
  for at = 1, 3 do
    rank[at + 1] = rank[at + 1] + charged[at]
  end
  if rank.of[5] < 0 then
    rank[2] = 0
  end
  rank.taken = { redis.call('ZCARD', group), redis.call('ZCARD', tenant) }
  count(served, 'g:' .. rank.of[3], rank[2], group)
  count(served, 't:' .. rank.of[6], rank[3], tenant)
  count(served, 'k:' .. rank.of[10], rank[4], key)
  keep(served, lease)
end

-- In how many ms the first of some holds ends.
local function next_end(of)
  local earliest = zset('ZRANGE', of, 0, 0, 'WITHSCORES')
  return earliest[2] and whole(math.max(1, earliest[2] - now)) or '0'
end

-- Whether as many run in a set as may; what is held there does not.
local function is_at_cap(set, cap, pool_holds)
  if cap == '' or not is_full(set, tonumber(cap)) then
    return false
  end
  local running = redis.call('ZCARD', set)
  for _, id in ipairs(zset('ZRANGE', pool_holds, 0, -1)) do
    if redis.call('ZSCORE', set, id) then
      running = running - 1
    end
  end
  return running >= tonumber(cap)
end

-- How many slots are taken up beyond a limit.
local function excess(set, limit)
  return is_full(set, limit + 1) and redis.call('ZCARD', set) - limit or 0
end

local function is_beyond(limits)
  for _, limit in ipairs(limits) do
    if limit[3] ~= '' and excess(limit[2], tonumber(limit[3])) > 0 then
      return true
    end
  end
  return false
end

local function claim(keys_at, args_at)
  local pool, group, tenant, key, served, pool_line, tenant_line, key_line, pool_holds, starves =
    unpack(KEYS, keys_at + 1, keys_at + KEYS_EACH - 1)
  local id, note, name, size, ceiling, tenant_cap, key_cap, standing, others, charges =
    unpack(ARGV, args_at + 1, args_at + 10)
  local hold, is_only, most, is_starving = unpack(ARGV, args_at + 11, args_at + ARGS_EACH)
  if not lease then
    return answered('not_live', '0', '')
  end
  local held_until = redis.call('ZSCORE', pool, id)
  if held_until and tonumber(held_until) > now then
    return answered('granted', '1', '')
  end
  local limits = {
    { 'pool', pool, size, pool_line },
    { 'ceiling', all, ceiling, line_all },
    { 'tenant', tenant, tenant_cap, tenant_line },
    { 'key', key, key_cap, key_line },
  }
  if
    is_starving == '1'
    and not is_at_cap(tenant, tenant_cap, pool_holds)
    and not is_at_cap(key, key_cap, pool_holds)
  then
    redis.call('SET', starves, whole(now), 'PX', STARVING)
    free_beyond(pool_holds, 0, 'freed_starving')
  else
    local room = zset('ZCARD', pool_holds) - excess(pool, tonumber(size))
    free_beyond(pool_holds, math.min(tonumber(most), room), 'freed')
  end
  local function rank_now()
    return standing ~= '' and ranked(served, cjson.decode(standing)[1], now)
  end
  if hold ~= '' then
    redis.call('PEXPIRE', KEYS[keys_at + KEYS_EACH], RUNNING)
    local is_held = zset('ZSCORE', pool_holds, hold)
    if is_held and (not is_whole(hold) or is_beyond(limits)) then
      free_hold(hold, 'freed')
      redis.call('ZREM', pool_holds, hold)
    elseif is_held then
      local rank = rank_now()
      drop_hold(hold, 'redeem')
      take(id, note, { pool, group, tenant, key })
      if rank then
        charge(rank, charges, served, group, tenant, key)
        if is_only == '0' then
          stand_for(pool_line, others)
          step_out(line_all, replica)
        end
      end
      return answered('granted', '1', 'held', rank)
    end
  end
  if is_only == '1' then
    return answered('no_hold', '0', '')
  end
  local rank = rank_now()
  for _, limit in ipairs(limits) do
    local by, set, most, line = unpack(limit)
    if most ~= '' and is_full(set, tonumber(most)) then
      if rank and by ~= 'ceiling' then
        line = pool_line
      elseif rank then
        step_out(pool_line, replica)
      end
      stand(line, replica, both(standing, others))
      if rank and (by == 'tenant' or by == 'key') then
        -- Slots that were asserted are not counted in what is served until now.
        count(served, 't:' .. rank.of[6], rank[3], tenant)
        count(served, 'k:' .. rank.of[10], rank[4], key)
        keep(served, lease)
        local best = ahead(line, served, name, best_of_others(served, name, others))
        if best then
          call(line, channel, best)
        end
      end
      return answered(by, next_end(by == 'ceiling' and holds or pool_holds), '', rank)
    end
  end
  local mine = best_of_others(served, name, others)
  for at = 1, rank and 2 or 0 do
    local by, _, _, line = unpack(limits[at])
    local best = ahead(line, served, name, rank)
    if mine then
      mine.turn = rank.turn
    end
    if best and (not mine or comes_before(best.rank, mine, SAME)) then
      call(line, channel, best)
      stand(line, replica, both(standing, others))
      return answered('not_your_turn', '0', by, rank)
    end
  end
  if rank and mine and comes_before(mine, rank, SAME) then
    stand(pool_line, replica, both(standing, others))
    return answered('not_your_turn', '0', 'pool', rank, mine)
  end
  take(id, note, { pool, group, tenant, key })
  if not rank then
    return answered('granted', '1', '')
  end

  charge(rank, charges, served, group, tenant, key)
  if redis.call('EXISTS', line_all) == 1 then
    redis.call('HSET', line_all, 'p:' .. name, redis.call('HINCRBY', line_all, 'n', 1))
  end
  local has_come = step_out(pool_line, replica)
  has_come = step_out(line_all, replica) or has_come
  if has_come then
    redis.call('PUBLISH', channel, cjson.encode({ came = replica, at = name }))
  end

  local is_room = true
  for at = 1, 2 do
    if is_room and is_full(limits[at][2], tonumber(limits[at][3])) then
      is_room = false
      stand_for(limits[at][4], others)
    end
  end
  -- The next slot may be somebody else's, who need not have been called for it, or of no use to the
  -- replica's own, who are all at their caps.
  mine = best_of_others(served, name, others)
  local best = is_room and ahead(pool_line, served, name, mine)
  if best then
    call(pool_line, channel, best)
  end
  if is_room and (best or mine == nil) then
    stand_for(pool_line, others)
    is_room = false
  end
  return answered('granted', is_room and '1' or '0', '', rank)
end

free_lapsed()
local answers = {}
for number = 0, (#ARGV - 2) / ARGS_EACH - 1 do
  answers[number + 1] = claim(6 + number * KEYS_EACH, 2 + number * ARGS_EACH)
end
return answers
