-- Release: an operator ends the claim KEYS[1] in any state, if the attempt that the operator was shown still holds it.
--
-- ARGV: the attempt.
-- Returns a verdict and, if another attempt holds the claim, its state and remaining milliseconds (-1: for ever).
local attempt = unpack(ARGV)

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
redis.call('DEL', KEYS[1])
notify(held)
return { 'released' }
