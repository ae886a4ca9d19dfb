-- Release: an operator ends the claim KEYS[1], whatever its state, if the attempt that was looked at still holds it.
--
-- ARGV: the attempt.
-- Answers: verdict, and where another attempt holds the claim its state and milliseconds left (-1: for ever).
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
return { 'released' }
