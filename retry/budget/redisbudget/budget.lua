-- One call of one worker: it reports what happened since its latest one, and
-- takes tokens. KEYS[1] is a hash:
--
--   at       time of the latest call, in seconds since 1970
--   tokens   what can be taken, but for the limit
--   room     how many retries the limit allows now
--   rate     deliveries a second lately
--   back     tokens given back a second lately
--   peak     the highest rate lately
--   since    since when there has been a line, or retries fail or succeed
--   sent, came, ticked      retries that started and succeeded since ticked
--   share, failed, flow, best, known, rose  of the limit, as pace.Limit has it
--   pruned   the first bucket of the line that may exist
--   l<n>     retries of the line that ask again in bucket n, of 8 s each
--   s<seat>  the worker on the seat, and when it called last
local key = KEYS[1]
local at = 0
local function text()
	at = at + 1
	return ARGV[at]
end
local function number() return tonumber(text()) end

local share, floor = number(), number()
local span, saved, halflife, least, longest = number(), number(), number(), number(), number()
local sample, failing, passing, smooth, forget = number(), number(), number(), number(), number()
local quiet, trial, backoff, growth = number(), number(), number(), number()
local id, seat, seats = text(), number(), number()
local delivered, refunded, elapsed, surplus, want = number(), number(), number(), number(), number()

local width = 8
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local bucket = math.floor(now / width)

local unlimited = 1e15
local fresh = {
	at = now, tokens = 1, room = 1, rate = 0, back = 0, peak = 0, since = now, pruned = bucket,
	sent = 0, came = 0, ticked = now, share = 1, failed = 0, flow = 0, best = 0, known = unlimited, rose = now - trial,
}
local names = {}
for name in pairs(fresh) do names[#names + 1] = name end
table.sort(names)
local v, whole = {}, true
for i, text in ipairs(redis.call('HMGET', key, unpack(names))) do
	v[names[i]] = tonumber(text or '')
	whole = whole and v[names[i]]
end
if not whole then v = fresh end

local passed = math.max(now - v.at, 0)
local fade = math.exp(-passed / span)
local mean = math.exp(-elapsed / 2 / span) -- of what the report counts
v.at = now
v.rate = v.rate * fade + delivered * mean / span
v.back = v.back * fade + refunded * mean / span
v.peak = math.max(v.peak * 2 ^ (-passed / halflife), v.rate, least * floor)
local ceiling = v.peak + floor
local capacity = math.max(1, (share * v.peak + floor) * saved)
v.tokens = math.min(v.tokens + floor * passed + share * delivered + refunded + surplus, capacity)
local income = floor + share * v.rate

-- The limit, once a second or later.
local changed = false
local function adapt(elapsed)
	local n = math.max(v.sent, v.came)
	if n > 0 then v.share = v.share + (v.came / n - v.share) * (1 - math.exp(-n / sample)) end
	if v.came > 0 and v.best < quiet then v.rose = now end
	v.flow = v.flow + (v.came / elapsed - v.flow) * (1 - smooth ^ elapsed)
	v.best = math.max(v.best * forget ^ elapsed, v.flow)
	local limit = math.min(v.known, ceiling)
	if v.failed == 0 and v.share < failing and v.flow <= v.best / 2 then
		v.failed, changed = 1, true
		if now - v.rose < trial or v.known < unlimited then v.known = limit / backoff end
	elseif v.failed == 1 and v.share > passing then
		v.failed, changed = 0, true
		v.rose, v.best = now, v.flow
	elseif v.failed == 0 then
		v.known = v.known * growth ^ elapsed
	end
	v.known = math.max(v.known, income)
	if v.known > ceiling then v.known = unlimited end
	v.sent, v.came, v.ticked = 0, 0, now
end
v.came = v.came + refunded
if v.ticked > now then v.ticked = now end
if now - v.ticked >= 1 then adapt(math.min(now - v.ticked, 60)) end
local limit = math.min(v.known, ceiling)
-- Some more than the income, which comes in lumps: the tokens see to the rest.
if v.failed == 1 then limit = math.min(1.25 * income, ceiling) end

v.room = math.min(v.room + limit * passed + surplus, math.max(1, limit))
local granted = math.floor(math.max(0, math.min(want, v.tokens, v.room)))
v.tokens = v.tokens - granted
v.room = v.room - granted
v.sent = math.max(0, v.sent + granted - surplus)

-- The line: retries told to ask again, by the bucket in which they do.
while at < #ARGV do
	local ahead, n = number(), number()
	redis.call('HINCRBY', key, 'l' .. (bucket + ahead), n)
end
if v.pruned > bucket then v.pruned = bucket end
if v.pruned < bucket then
	local old = {}
	for i = math.max(v.pruned, bucket - 1000), bucket - 1 do old[#old + 1] = 'l' .. i end
	redis.call('HDEL', key, unpack(old))
	v.pruned = bucket
end
local buckets = {}
for i = 0, math.ceil(longest / width) + 1 do buckets[#buckets + 1] = 'l' .. (bucket + i) end
local waiting, left = 0, 1 - (now / width - bucket)
for i, n in ipairs(redis.call('HMGET', key, unpack(buckets))) do
	waiting = waiting + (tonumber(n or '') or 0) * (i == 1 and left or 1)
end
if waiting < 1 or changed or v.since > now then v.since = now end

-- A worker keeps its seat, or gets the next free one; -1 if there is none.
local function sit()
	for i = 0, seats - 1 do
		local s = (seat + i) % seats
		local whose, since = string.match(redis.call('HGET', key, 's' .. s) or '', '^(.*) (.*)$')
		if not whose or whose == id or tonumber(since) < now - 60 or tonumber(since) > now + 1 then
			redis.call('HSET', key, 's' .. s, id .. ' ' .. math.floor(now))
			return s
		end
	end
	return -1
end
seat = sit()

local fields = {}
for _, name in ipairs(names) do
	fields[#fields + 1] = name
	fields[#fields + 1] = string.format('%.17g', v[name])
end
redis.call('HSET', key, unpack(fields))
redis.call('PEXPIRE', key, 3600000)

local reply = { seat, granted }
for _, n in ipairs({
	v.tokens, capacity, limit, math.min(v.known, ceiling), math.min(income + v.back, limit), waiting, now - v.since,
}) do
	reply[#reply + 1] = string.format('%.9g', n)
end
return reply
