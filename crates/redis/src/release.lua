-- Release: an operator ends the claim KEYS[1] in any state, or replaces the result of a succeeded one, if the attempt that the operator
-- was shown still holds it.
--
-- ARGV: the attempt; the new result as the end of the value (a newline and its text), or nothing: the claim ends.
-- Returns a verdict and, if another attempt holds the claim, its state and remaining milliseconds (-1: for ever).
local attempt, result = unpack(ARGV)

local held, unreadable = hold(KEYS[1])
if unreadable then
  return { 'unreadable' }
end
if not held then
  return { 'absent' }
end
if held.attempt ~= attempt then
  return { 'superseded', held.state, held.left_ms }
end
if result ~= '' then
  if held.state ~= 's' then
    return { 'superseded', held.state, held.left_ms }
  end
  redis.call('SET', KEYS[1], string.match(held.value, '^[^\n]*') .. result, 'KEEPTTL')
  return { 'released' }
end
redis.call('DEL', KEYS[1])
notify(held)
return { 'released' }
