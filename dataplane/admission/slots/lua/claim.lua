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
--          it was not its turn or at which there is none for the next, or held if it took such a
--          slot, and the tenant and key whose turn it is if they are the replica's own. Then, for one
--          that goes by the order, the scores of group, tenant and key, and the slots that group and
--          tenant have taken.
-- Safe to repeat? Yes. An id that is on the books is granted and nothing changes.

-- #include clock
local all, line_all, holds, hold_notes = KEYS[2], KEYS[4], KEYS[5], KEYS[6]
local channel = ARGV[2]
-- #include line
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

-- Who is to go before one of the replica's own in a pool, if anybody is. None of its own: anybody.
local function ahead(pool, rank)
  local places = waiting(pool)
  local best = first(places, replica)
  if not rank then
    return best or first(places, replica, true)
  end
  return best and comes_before(best.rank, rank, SAME) and best
end

-- Who is to go before anybody of a pool since it is another pool's turn at the ceiling, and in which
-- line.
local function ahead_in_turn(own)
  for _, pool in ipairs(in_turn(own)) do
    if pool == own then
      return nil
    end
    local best = first_in(pool)
    if best then
      return best, pool.line
    end
  end
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

local function best_of_others(pool, others)
  return others ~= '' and best_of(pool, others, now)
end

-- Who is called for a slot that is not for one of the replica's own, in which line, and the limit that
-- made it so.
local function next_one(pool, rank)
  local best, its_line = ahead_in_turn(pool)
  if best then
    return best, its_line, 'ceiling'
  end
  return ahead(pool, rank), pool.line, 'pool'
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
  local earliest = sound('ZRANGE', of, 0, 0, 'WITHSCORES')
  return earliest[2] and whole(math.max(1, earliest[2] - now)) or '0'
end

-- Whether as many run in a set as may; what is held there does not.
local function is_at_cap(set, cap, pool_holds)
  if cap == '' or not is_full(set, tonumber(cap)) then
    return false
  end
  local running = redis.call('ZCARD', set)
  for _, id in ipairs(sound('ZRANGE', pool_holds, 0, -1)) do
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
  local own = { name = name, line = pool_line, served = served, set = pool }
  local turns_note = { tonumber(size), pool, pool_line, served }
  if
    is_starving == '1'
    and not is_at_cap(tenant, tenant_cap, pool_holds)
    and not is_at_cap(key, key_cap, pool_holds)
  then
    redis.call('SET', starves, whole(now), 'PX', STARVING)
    free_beyond(pool_holds, 0, 'freed_starving')
  else
    local room = sound('ZCARD', pool_holds) - excess(pool, tonumber(size))
    free_beyond(pool_holds, math.min(tonumber(most), room), 'freed')
  end
  local function rank_now()
    local of = standing ~= '' and cjson.decode(standing)[1]
    return of and ranked(own, of, now, cut_for(own, of))
  end
  if hold ~= '' then
    redis.call('PEXPIRE', KEYS[keys_at + KEYS_EACH], RUNNING)
    local is_held = sound('ZSCORE', pool_holds, hold)
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
        end
      end
      return answered('granted', '1', 'held', rank)
    end
  end
  if is_only == '1' then
    return answered('no_hold', '0', '')
  end
  local rank = rank_now()
  local place = rank and place_of(pool_line, replica)
  if place and place.called > 0 then
    -- It has come, whatever becomes of its claim: who has the slot instead is called.
    redis.call('PUBLISH', channel, cjson.encode({ came = replica, at = name }))
  end
  for _, limit in ipairs(limits) do
    local by, set, most, line = unpack(limit)
    if most ~= '' and is_full(set, tonumber(most)) then
      if rank then
        wait_in(own, turns_note, by, replica, both(standing, others))
      else
        stand(line, replica, both(standing, others))
      end
      if rank and (by == 'tenant' or by == 'key') then
        -- Slots that were asserted are not counted in what is served until now.
        count(served, 't:' .. rank.of[6], rank[3], tenant)
        count(served, 'k:' .. rank.of[10], rank[4], key)
        keep(served, lease)
        local best, its_line = next_one(own, best_of_others(own, others))
        if best then
          call(its_line, channel, best)
        end
      end
      return answered(by, next_end(by == 'ceiling' and holds or pool_holds), '', rank)
    end
  end
  local mine = best_of_others(own, others)
  if rank then
    local best, its_line, by = next_one(own, rank)
    if best and (by == 'ceiling' or not mine or comes_before(best.rank, mine, SAME)) then
      call(its_line, channel, best)
      wait_in(own, turns_note, by, replica, both(standing, others))
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
  goes_last(name)
  step_out(pool_line, replica)
  for at = 1, 2 do
    local by, set, most = unpack(limits[at])
    if is_full(set, tonumber(most)) then
      if others ~= '' then
        wait_in(own, turns_note, by, replica, others)
      end
      return answered('granted', '0', by, rank)
    end
  end
  -- The next slot may be somebody else's, who need not have been called for it, or of no use to the
  -- replica's own, who are all at their caps.
  mine = best_of_others(own, others)
  local best, its_line, by = next_one(own, mine)
  if best then
    call(its_line, channel, best)
  end
  if best or mine == nil then
    stand_for(pool_line, others)
    return answered('granted', '0', by, rank)
  end
  return answered('granted', '1', '', rank)
end

free_lapsed()
local answers = {}
for number = 0, (#ARGV - 2) / ARGS_EACH - 1 do
  answers[number + 1] = claim(6 + number * KEYS_EACH, 2 + number * ARGS_EACH)
end
return answers
