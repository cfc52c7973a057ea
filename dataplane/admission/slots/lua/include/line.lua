-- The line at a limit: one place for each replica that was refused by it, under the replica's name:
-- since when it stands there, when it was called, when it last did not come, and how those of its
-- waiters stand that may come first, as the replica wrote it, each: pool, ms waited; group, its
-- floor, its share; tenant, its floor, its share, its cap; key, its floor, its cap. A share of -1:
-- shares do not count; a cap of -1: none. Where the ceiling may leave the pool less than its size,
-- there follow a number of slots, the pool's size, the ceiling, and the group's and the tenant's shares
-- of that number of slots, of one more, and so on. Nothing: it goes by no order, and is told of
-- whatever is freed. Those that go by the order stand at their pool alone, whatever refused them: one
-- whose tenant or key is at its cap is left out until it is not, and pools take turns while the ceiling
-- keeps anybody waiting. Needs `clock`, and of the script: all, line_all.
-- A pool is a table here: its name, the line at it, what is served in it, and the set of its slots.

-- A place is good for this long; whoever stands in line claims again before it is over.
local FRESH = 8000
-- Whoever is called is waited for this long. If it does not come, nobody waits for it until it has
-- claimed again, and for this long at least; it is called all the same if there is nobody else.
local CALLED, PASSED = 100, 250
-- Of requests that stand alike in all else one must have waited this much longer to go before
-- another that could take the slot at once.
local SAME = 100
local BEYOND_ALL = 1e100

-- Something else under one of our names can only be an accident; it is put right by starting anew.
local function sound(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    redis.call('DEL', key)
    reply = redis.call(command, key, ...)
  end
  return reply
end

local function decoded(name, record)
  local at, called, passed, text = string.match(record, '^(%d+) (%d+) (%d+) (.*)$')
  at, called, passed = tonumber(at), tonumber(called), tonumber(passed)
  if not at or at > now or now - at >= FRESH then
    return nil
  end
  return { name = name, at = at, called = called, passed = passed, text = text }
end

local function write(line, place)
  local record = { whole(place.at), whole(place.called), whole(place.passed), place.text }
  redis.call('HSET', line, 'r:' .. place.name, table.concat(record, ' '))
  redis.call('PEXPIRE', line, whole(FRESH))
end

local function place_of(line, replica)
  local record = sound('HGET', line, 'r:' .. replica)
  return record and decoded(replica, record)
end

local function is_passed(place)
  return place.passed > 0 and (now - place.passed < PASSED or place.at < place.passed)
end

-- A replica takes a place, or has a new best waiter there.
local function stand(line, replica, text)
  local before = place_of(line, replica)
  local passed = before and before.passed or 0
  write(line, { name = replica, at = now, called = 0, passed = passed, text = text })
end

-- It goes; that it did not come when called is remembered.
local function step_out(line, replica)
  local before = place_of(line, replica)
  if before and is_passed(before) then
    write(line, { name = replica, at = now, called = 0, passed = before.passed, text = '-' })
  elseif before then
    redis.call('HDEL', line, 'r:' .. replica)
  end
end

-- Score and slots taken of a group or tenant as written in `served`; a score is never below the
-- level at which its node last came back. None comes anywhere near BEYOND_ALL.
local function served_of(value, floor)
  local text, taken = string.match(value or '', '^(%S+) (%d+)$')
  local score = tonumber(text)
  return math.max(score and score < BEYOND_ALL and score or 0, floor), tonumber(taken) or 0
end

-- Which of the shares that a waiter comes with are those of as many slots as the ceiling leaves its
-- pool now; nil if it comes with one only. The same for all that a replica wrote at once.
local function cut_for(pool, of)
  local first, size, ceiling, groups = unpack(of, 13, 16)
  if not first then
    return nil
  end
  local taken = redis.call('ZCARD', pool.set)
  local left = ceiling - (redis.call('ZCARD', all) - taken)
  local slots = math.min(size, math.max(taken, left))
  return math.max(1, math.min(#groups, slots - first + 1))
end

-- Where a waiter stands among all that want a slot of its pool: first whether it is under its share,
-- then by scores, then by age. Worked out anew each time, so that only who waits may be out of date.
local function ranked(pool, of, at, cut)
  local group, tenant, key = of[3], of[6], of[10]
  local values = sound('HMGET', pool.served, 'g:' .. group, 't:' .. tenant, 'k:' .. key)
  local group_score, group_taken = served_of(values[1], of[4])
  local tenant_score, tenant_taken = served_of(values[2], of[7])
  local key_score, key_taken = served_of(values[3], of[11])
  local group_share, tenant_share = of[5], of[8]
  if cut and of[16] then
    group_share, tenant_share = of[16][cut], of[17][cut]
  end
  local over = 1
  if group_share < 0 then
    group_score = 0
  elseif
    (group_taken == 0 or group_taken < group_share)
    and (tenant_taken == 0 or tenant_taken < tenant_share)
  then
    over = 0
  end
  return {
    pool = of[1],
    since = at - of[2],
    tenant = tenant,
    key = key,
    of = of,
    is_capped = of[9] >= 0 and tenant_taken >= of[9] or of[12] >= 0 and key_taken >= of[12],
    over,
    group_score,
    tenant_score,
    key_score,
    taken = { group_taken, tenant_taken },
  }
end

-- Scores of keys say something inside their tenant only.
local function comes_before(one, other, slack)
  for at = 1, #one do
    if one[at] ~= other[at] and (at < 4 or one.tenant == other.tenant) then
      return one[at] < other[at]
    end
  end
  return one.since + slack < other.since
end

-- The one of a replica's waiters that comes first, if any of them could go.
local function best_of(pool, text, at)
  local best
  local waiters = cjson.decode(text)
  local cut = cut_for(pool, waiters[1])
  for _, of in ipairs(waiters) do
    local rank = ranked(pool, of, at, cut)
    if not rank.is_capped and (not best or comes_before(rank, best, 0)) then
      best = rank
    end
  end
  return best
end

-- Everyone in a line who goes by the order and could go, and whether somebody goes by none. The line
-- is the pool's if none is named. Whoever was called and has not come is passed over from here on. A
-- place that says nothing sensible is no place.
local function waiting(pool, line)
  line = line or pool.line
  local places, is_unordered = {}, false
  local records = sound('HGETALL', line)
  for at = 1, #records, 2 do
    local name = string.match(records[at], '^r:(.*)$')
    local place = name and decoded(name, records[at + 1])
    if place and place.called > 0 and now - place.called >= CALLED then
      -- Since when it is; it may be that replica itself which finds out, as it comes.
      place.called, place.passed = 0, place.called + CALLED
      write(line, place)
    end
    if name and not place then
      redis.call('HDEL', line, records[at])
    elseif place then
      if place.text == '' then
        is_unordered = true
        redis.call('HDEL', line, records[at])
      elseif place.text ~= '-' then
        local is_sound, rank = pcall(best_of, pool, place.text, place.at)
        if not is_sound then
          redis.call('HDEL', line, records[at])
        elseif rank then
          local passed = is_passed(place)
          table.insert(places, { place = place, rank = rank, is_passed = passed })
        end
      end
    end
  end
  return places, is_unordered
end

-- Whoever comes first of all but one: of those that may be waited for, or of the others.
local function first(places, but, passed)
  local best
  for _, each in ipairs(places) do
    local name = each.place.name
    if name ~= but and each.is_passed == (passed or false) then
      local is_first = not best or comes_before(each.rank, best.rank, 0)
      if is_first or each.place.name < best.place.name and not comes_before(best.rank, each.rank, 0) then
        best = each
      end
    end
  end
  return best
end

-- It is the turn of somebody's waiter: tell it, and the others, who look whether it comes, once.
local function call(line, channel, best)
  if best.place.called > 0 then
    return
  end
  best.place.called = now
  write(line, best.place)
  local rank, name = best.rank, best.place.name
  local message = { pool = rank.pool, turn = name, tenant = rank.tenant, key = rank.key }
  redis.call('PUBLISH', channel, cjson.encode(message))
end

-- Whether a replica waits at a limit.
local function is_waited_for(line)
  local records = sound('HGETALL', line)
  for at = 1, #records, 2 do
    local name = string.match(records[at], '^r:(.*)$')
    local place = name and decoded(name, records[at + 1])
    if place and place.text ~= '-' then
      return true
    end
  end
  return false
end

-- The number of a turn; none is that large.
local function turn_of(text)
  local turn = tonumber(text)
  return turn and turn >= 0 and turn < 2 ^ 53 and turn or 0
end

-- A pool has had a slot under the ceiling, or only now wants one: its turn comes after the others'.
local function goes_last(pool)
  if redis.call('EXISTS', line_all) == 1 then
    local turn = whole(turn_of(redis.call('HGET', line_all, 'n')) + 1)
    redis.call('HSET', line_all, 'n', turn, 't:' .. pool, turn)
  end
end

-- A pool as it is noted; nil if that says nothing sensible.
local function noted(name, text)
  local is_sound, note = pcall(cjson.decode, text)
  if is_sound and type(note) == 'table' and type(note[1]) == 'number' and #note == 4 then
    return { name = name, size = note[1], set = note[2], line = note[3], served = note[4] }
  end
  return nil
end

-- A replica waits in the line of a pool for what a limit keeps. If that is the ceiling, or if it has
-- kept anybody lately, the pool takes turns with the others, and of it is noted: its size, set, line,
-- and what is served there.
local function wait_in(pool, note, by, replica, text)
  local field = 'p:' .. pool.name
  local is_known = sound('HEXISTS', line_all, field) == 1
  if by == 'ceiling' or redis.call('EXISTS', line_all) == 1 then
    redis.call('HSET', line_all, field, cjson.encode(note))
    if not is_known or not is_waited_for(pool.line) then
      goes_last(pool.name)
    end
  end
  if by == 'ceiling' then
    redis.call('PEXPIRE', line_all, whole(FRESH))
  end
  stand(pool.line, replica, text)
end

-- A slot of a pool is free. If it was full, and takes turns, it only now wants one again.
local function wants_again(pool)
  local text = sound('HGET', line_all, 'p:' .. pool.name)
  local known = text and noted(pool.name, text)
  if known and redis.call('ZCARD', pool.set) == known.size - 1 then
    goes_last(pool.name)
  end
end

-- The pools that take turns, and one more: that which had a slot, or began to want one, longest ago
-- comes first, and that one before those with which it is even. Where nobody waits for it it has only
-- begun now.
local function in_turn(own)
  local pools, turns, last = { own }, {}, 0
  local fields = sound('HGETALL', line_all)
  for at = 1, #fields, 2 do
    local kind, name = string.match(fields[at], '^(%l):(.*)$')
    if kind == 't' then
      turns[name] = turn_of(fields[at + 1])
      last = math.max(last, turns[name])
    elseif kind == 'p' and name ~= own.name then
      table.insert(pools, noted(name, fields[at + 1]))
    end
  end
  if #pools > 1 and not is_waited_for(own.line) then
    turns[own.name] = last + 1
  end
  for _, each in ipairs(pools) do
    each.turn = (turns[each.name] or 0) - (each == own and 0.5 or 0)
  end
  table.sort(pools, function(one, other)
    return one.turn < other.turn or one.turn == other.turn and one.name < other.name
  end)
  return pools
end

-- Whoever comes first in a pool that has room: of those that may be waited for, or of the others. A
-- pool in which nobody stands takes no turns.
local function first_in(pool, passed)
  if not pool.places then
    local taken = redis.pcall('ZCARD', pool.set)
    local is_full = type(taken) ~= 'number' or taken >= pool.size
    pool.places = is_full and {} or waiting(pool)
    if not is_full and redis.call('EXISTS', pool.line) == 0 then
      redis.call('HDEL', line_all, 'p:' .. pool.name, 't:' .. pool.name)
    end
  end
  return first(pool.places, nil, passed)
end
