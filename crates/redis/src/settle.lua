-- Outcome call: the table of outcomes for the claim KEYS[1]. Its reference is `settle` in crates/core/src/claim/transitions.rs.
--
-- ARGV: the attempt; the outcome (`s`, `f` or `u`); the result as the end of the value (a newline and its text, or
-- nothing); the retention that overrides the claim's, or nothing; the value to record if there is no live claim, without its
-- result, or nothing; and that record's milliseconds, -1 for ever.
-- Returns verdict, state, remaining milliseconds (-1: for ever, or ended), the end in milliseconds (-1 likewise), whether the record is
-- late, and 1 if it may have an entry in the index of unknown claims.
local attempt, outcome, result, retention, late, late_ms = unpack(ARGV)

local function put(value, ms)
  if ms < 0 then
    redis.call('SET', KEYS[1], value)
  else
    redis.call('SET', KEYS[1], value, 'PX', whole(ms))
  end
end

local held, unreadable = hold(KEYS[1])
if unreadable then
  return { 'unreadable' }
end

if not held then
  if late ~= '' then
    put(late .. result, tonumber(late_ms))
    return { 'done', outcome, tonumber(late_ms), ends_ms(), 1 }
  elseif outcome == 'f' then
    return { 'done', '', -1, -1, 1 }
  end
  return { 'expired' }
end

-- Compared whole: the timestamp alone is not a secret.
if held.attempt ~= attempt then
  return { 'superseded', held.state, held.left_ms }
end

if held.state == 's' then
  -- A success is final, and the first result stays.
  if outcome == 's' then
    return { 'done', 's', held.left_ms, ends_ms(), held.late }
  end
  return { 'succeeded' }
end

local has_entry = (held.outlives_lease or held.state == 'u') and 1 or 0
if outcome == 'f' then
  redis.call('DEL', KEYS[1])
  notify(held)
  return { 'done', '', -1, -1, 0, has_entry }
end

if outcome == 'u' then
  if held.state == 'p' then
    put(attempt .. ' 1u' .. held.tail, held.unknown_retention_ms)
    notify(held)
    return { 'done', 'u', held.unknown_retention_ms, ends_ms(), held.late }
  end
  return { 'done', 'u', held.left_ms, ends_ms(), held.late }
end

local ms = held.retention_ms
if retention ~= '' then
  ms = retention_ms(retention)
  retention = ' r=' .. retention
end
put(attempt .. ' 1s' .. retention .. held.tail .. result, ms)
notify(held)
return { 'done', 's', ms, ends_ms(), held.late, has_entry }
