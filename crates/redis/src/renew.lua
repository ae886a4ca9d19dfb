-- Renewal: the claim KEYS[1] lasts for a lease from now on, unless it lasts longer already.
--
-- ARGV: the attempt, and the lease in milliseconds, or nothing for the lease of the claim's terms.
-- Returns verdict, state, remaining milliseconds (-1: for ever), and the end of a renewed lease in milliseconds.
local attempt, lease = unpack(ARGV)

local held, unreadable = hold(KEYS[1])
if unreadable then
  return { 'unreadable' }
end
if not held then
  return { 'lost' }
end
if held.attempt ~= attempt then
  return { 'superseded', held.state, held.left_ms }
end
if held.state == 's' then
  return { 'succeeded' }
end
if held.state == 'u' then
  return { 'lost' }
end

local lease_ms = lease ~= '' and tonumber(lease) or held.lease_ms
if held.left_ms >= 0 and held.left_ms < lease_ms then
  redis.call('PEXPIRE', KEYS[1], whole(lease_ms + held.grace_ms))
  held.left_ms = lease_ms
elseif held.left_ms < 0 then
  held.left_ms = lease_ms
end
return { 'renewed', 'p', held.left_ms, ends_ms() - held.grace_ms }
