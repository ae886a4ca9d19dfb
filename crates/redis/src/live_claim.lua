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

-- The milliseconds of a span as the value writes it, nil for anything else.
local function span_ms(text)
  local count, unit = string.match(text, '^([1-9]%d*)(%l+)$')
  if not count or #count > 9 or not UNITS[unit] then
    return nil
  end
  return tonumber(count) * UNITS[unit]
end

-- The same of a retention, -1 for `forever`.
local function retention_ms(text)
  return text == 'forever' and -1 or span_ms(text)
end

-- Whether strings are closed, brackets are paired, and outside of strings there is nothing but what JSON has there.
local function may_be_json(text)
  -- Most contents are a string, or an object of one.
  if string.find(text, '^"[^"\\]*"$') or string.find(text, '^{"[^"\\]*":"[^"\\]*"}$') then
    return true
  end
  local bare = string.gsub(string.gsub(text, '\\.', '0'), '"[^"]*"', '0')
  local words = { ['true'] = '', ['false'] = '', ['null'] = '', e = '', E = '' }
  local rest = string.gsub(bare, '%a+', words)
  local _, opened = string.gsub(rest, '{', '{')
  local _, closed = string.gsub(rest, '}', '}')
  local _, listed = string.gsub(rest, '%[', '[')
  local _, ended = string.gsub(rest, '%]', ']')
  return text ~= '' and opened == closed and listed == ended
    and not string.find(rest, '[^%d+%-.{}%[%],: \t\r\n]')
end

local function is_utf8(text)
  if not string.find(text, '[\128-\255]') then
    return true
  end
  -- Each sequence has a first byte of its own, so what is left of them is none.
  local sequences = {
    '[\194-\223][\128-\191]',
    '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]',
    '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]',
  }
  for _, sequence in ipairs(sequences) do
    text = string.gsub(text, sequence, ' ')
  end
  return not string.find(text, '[\128-\255]')
end

local function is_digest(text)
  return #text == 64 and not string.find(text, '%X')
end

-- Reads a word into what is held; whether it could be read. Words of newer releases are left aside.
local function read_word(held, word)
  local name, text = string.match(word, '^(%l)=(.*)$')
  if name == 'l' then
    held.lease_ms = span_ms(text)
    return held.lease_ms
  elseif name == 'r' then
    -- The first one counts: a success puts a new retention before the old one.
    held.retention_ms = held.retention_ms or retention_ms(text)
    return held.retention_ms
  elseif name == 'u' then
    held.unknown_retention_ms = retention_ms(text)
    return held.unknown_retention_ms
  elseif name == 'e' then
    held.outlives_lease = text == 'u'
    return held.outlives_lease
  elseif name == 'o' then
    return text == '' or (#text <= 128 and string.find(text, '^%w[%w._:/-]*$'))
  elseif name == 'f' then
    return is_digest(text)
  elseif name == 'h' then
    local digest, bytes = string.match(text, '^([^:]*):(%d+)$')
    return digest and is_digest(digest) and #bytes <= 15
  elseif word == 'late' then
    held.late = 1
  end
  return true
end

-- What stands under the key, judged by this server's clock; nil if nothing does. The second value is true if it cannot
-- be read: it is then neither absent nor to be touched. `decode` in crates/core/src/engine/value.rs reads values in the same way, and
-- a test compares the two: a change to one is a change to both.
local function hold(key)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  if not is_utf8(value) then
    return nil, true
  end
  local header = string.match(value, '^[^\n]*')
  local contents_at = string.find(header, ' c=', 1, true)
  if contents_at and not may_be_json(string.sub(header, contents_at + 3)) then
    return nil, true
  end
  local words = contents_at and string.sub(header, 1, contents_at - 1) or header
  local attempt, state, rest = string.match(words, '^([1-9]%d*%-[%w_-]+) 1([psu])(.*)$')
  if not attempt or (rest ~= '' and string.sub(rest, 1, 1) ~= ' ') then
    return nil, true
  end
  local digits = string.find(attempt, '-', 1, true) - 1
  local nonce = #attempt - digits - 1
  -- Of as many digits the order of the text is that of the numbers.
  if digits ~= 16 or string.sub(attempt, 1, 16) > '9007199254740991' or nonce < 16 or nonce > 64 then
    return nil, true
  end

  local held = { value = value, attempt = attempt, state = state, late = 0 }
  -- All that follows the state letter, up to the result.
  held.tail = string.sub(header, #attempt + 4)
  for word in string.gmatch(rest, '[^ ]+') do
    if not read_word(held, word) then
      return nil, true
    end
  end
  -- What the layout implies where a word is left out: 30 s, a day, 7 days.
  held.lease_ms = held.lease_ms or 30000
  held.retention_ms = held.retention_ms or 86400000
  held.unknown_retention_ms = held.unknown_retention_ms or 604800000

  -- Time stands still while a script runs, so this agrees with the GET above. -1: nothing but a deed ends it.
  held.left_ms = redis.call('PTTL', key)
  held.grace_ms = 0
  if state == 'p' and held.outlives_lease and held.left_ms >= 0 then
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
