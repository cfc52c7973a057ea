-- Whether a request passes. KEYS: 1 its tenant's minute; then two a term. ARGV: 1 estimate, 2 tokens
-- a minute (empty: no such budget), 3 lease; then one a term: the tokens allowed in it.
local function look()
  local estimate, size, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local passes, answer = 1, {}
  for number = 1, (#KEYS - 1) / 2 do
    local term = term_now(KEYS[2 * number], KEYS[2 * number + 1], lease)
    if not term or term.committed + term.reserved + estimate > tonumber(ARGV[3 + number]) then
      passes = 0
    end
    table.insert(answer, term and whole(term.committed) or '')
    table.insert(answer, term and whole(term.reserved) or '')
  end
  local minute = size and minute_now(KEYS[1], size)
  if minute and minute.resized then
    keep_minute(KEYS[1], minute)  -- from now on it refills at the new rate, whoever passes
  end
  if minute and minute.level < math.min(estimate, size) * UNITS then
    passes = 0
  end
  table.insert(answer, 1, minute and whole(minute.level) or '')
  table.insert(answer, 1, passes)
  return passes == 1, minute, answer
end
