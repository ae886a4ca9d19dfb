#!lua flags=allow-oom
-- Put before the scripts that change a claim: reads what KEYS[1] holds and judges its time.
--
-- allow-oom: outcomes and renewals of claims that were granted must go through while the server has no room for new
-- ones. No `no-writes` anywhere, on purpose: a replica would run such a script and answer from what it has got so far.
--
-- The layout of the value is described in docs/adr/0003-value-layout.md. Only words before ` c=` count, since contents
-- may hold anything but a newline, and the result after the newline may hold anything at all.

-- While in progress, a claim whose lease end means `unknown` must outlive its lease physically. So it is given a
-- hundred years on top, and has ended once less than that is left.
local GRACE = 3155760000000

local UNITS = { ms = 1, s = 1000, m = 60000, h = 3600000, d = 86400000 }

-- The milliseconds of a span as the value writes it, -1 for `forever`, nil for anything else.
local function span_ms(text)
  if text == 'forever' then
    return -1
  end
  local count, unit = string.match(text, '^([1-9]%d*)(%l+)$')
  if not count or #count > 9 or not UNITS[unit] then
    return nil
  end
  return tonumber(count) * UNITS[unit]
end

-- What stands under the key, judged by this server's clock; nil if nothing does. The second value is true if it cannot
-- be read: it is then neither absent nor to be touched.
local function hold(key)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  local header = string.match(value, '^[^\n]*')
  local contents_at = string.find(header, ' c=', 1, true)
  local words = contents_at and string.sub(header, 1, contents_at - 1) or header
  local attempt, state, rest = string.match(words, '^([1-9]%d*%-[%w_-]+) 1([psu])(.*)$')
  if not attempt or (rest ~= '' and string.sub(rest, 1, 1) ~= ' ') then
    return nil, true
  end

  local held = { value = value, attempt = attempt, state = state, late = 0 }
  -- All that follows the state letter, up to the result.
  held.tail = string.sub(header, #attempt + 4)
  -- What the layout implies where a word is left out.
  local terms = { l = '30s', u = '7d' }
  for word in string.gmatch(rest, '[^ ]+') do
    local name, text = string.match(word, '^(%l)=(.*)$')
    if word == 'late' then
      held.late = 1
    elseif name == 'r' then
      -- The first one counts: a success puts a new retention before the old one.
      terms.r = terms.r or text
    elseif name == 'l' or name == 'u' or name == 'e' then
      terms[name] = text
    end
  end
  held.lease_ms = span_ms(terms.l)
  held.retention_ms = span_ms(terms.r or '1d')
  held.unknown_retention_ms = span_ms(terms.u)
  if not held.lease_ms or held.lease_ms < 0 or not held.retention_ms or not held.unknown_retention_ms then
    return nil, true
  end
  if terms.e and terms.e ~= 'u' then
    return nil, true
  end

  -- Time stands still while a script runs, so this agrees with the GET above. -1: nothing but a deed ends it.
  held.left_ms = redis.call('PTTL', key)
  held.grace_ms = 0
  if state == 'p' and terms.e == 'u' and held.left_ms >= 0 then
    held.grace_ms = GRACE
    held.left_ms = held.left_ms - GRACE
    if held.left_ms < 0 then
      held.state = 'u'
      held.left_ms = -1
    end
  end
  return held
end

-- Milliseconds as an argument. Redis would write large ones with an exponent, and then refuse to read them.
local function whole(ms)
  return string.format('%.0f', ms)
end
