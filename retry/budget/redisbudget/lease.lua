-- One call of one worker. It reports deliveries and, if Redis forgot them, the
-- leases that it holds; it gets new leases. KEYS[1] is a hash:
--
--   u<block>  retries leased in the 64 slots of the block, two bytes for each
--   d<slot>   deliveries of the slot
--   s<seat>   the worker on the seat and the slot of its latest call
--   epoch, born, calls, pruned
local key = KEYS[1]
local at = 0
local function text()
	at = at + 1
	return ARGV[at]
end
local function number() return tonumber(text()) end

local width, horizon, lag, settle = number(), number(), number(), number()
local share, floor, limits = number(), number(), number()
local id, seat, seats = text(), number(), number()
local theirs, seen = text(), number()

local time = redis.call('TIME')
local current = math.floor((time[1] * 1000000 + time[2]) / width)
local last = current + horizon

-- An epoch ends when the key is lost, or goes back in time: with a restart, an
-- eviction, a replica that had not got the latest writes.
local epoch, born, calls, pruned = unpack(redis.call('HMGET', key, 'epoch', 'born', 'calls', 'pruned'))
if not epoch or (epoch == theirs and tonumber(calls) < seen) then
	if epoch then redis.call('DEL', key) end
	epoch, born, pruned = time[1] .. '-' .. time[2], current, current
	redis.call('HSET', key, 'epoch', epoch, 'born', born, 'pruned', pruned)
end
calls = redis.call('HINCRBY', key, 'calls', 1)
local settled = current >= born + settle

local function prune()
	local old, first = {}, tonumber(pruned)
	local stop = math.min(current - 3 * lag, first + 1000)
	if stop <= first then return end
	for s = first, stop - 1 do
		old[#old + 1] = 'd' .. s
		if s % 64 == 63 then old[#old + 1] = 'u' .. math.floor(s / 64) end
	end
	redis.call('HDEL', key, unpack(old))
	redis.call('HSET', key, 'pruned', stop)
end

-- A worker keeps its seat, or gets the next free one; -1 if there is none.
local function sit()
	for i = 0, seats - 1 do
		local s = (seat + i) % seats
		local whose, since = string.match(redis.call('HGET', key, 's' .. s) or '', '^(.*) (.*)$')
		if not whose or whose == id or tonumber(since) < current - 3 * lag or tonumber(since) > current then
			redis.call('HSET', key, 's' .. s, id .. ' ' .. current)
			return s
		end
	end
	return -1
end

-- blocks holds what was read; their numbers count from the current block.
local base = math.floor(current / 64)
local blocks, changed = {}, {}
local function find(slot)
	local b = math.floor(slot / 64) - base
	if not blocks[b] then
		local counts = {}
		local bytes = { string.byte(redis.call('HGET', key, 'u' .. (base + b)) or '', 1, 128) }
		for i = 1, 64 do counts[i] = (bytes[2 * i - 1] or 0) + (bytes[2 * i] or 0) * 256 end
		blocks[b] = counts
	end
	return blocks[b], slot % 64 + 1, b
end
local function lease(slot, n)
	local counts, i, b = find(slot)
	counts[i] = math.min(counts[i] + n, 65535)
	changed[b] = counts
end
local function store()
	for b, counts in pairs(changed) do
		local bytes = {}
		for i, n in ipairs(counts) do bytes[i] = string.char(n % 256, math.floor(n / 256)) end
		redis.call('HSET', key, 'u' .. (base + b), table.concat(bytes))
	end
end

-- pairs_of calls f for each pair of numbers that come next.
local function pairs_of(f)
	for _ = 1, number() do f(number(), number()) end
end

-- The limit counts the latest window, or the one lag slots ago, for which all
-- workers have reported.
local function measure()
	local names, recent, reported = {}, 0, 0
	for i = 0, 5 do
		names[#names + 1] = 'd' .. (current - i)
		names[#names + 1] = 'd' .. (current - lag - i)
	end
	local n = redis.call('HMGET', key, unpack(names))
	for i = 1, #n, 2 do
		recent = recent + (n[i] or 0)
		reported = reported + (n[i + 1] or 0)
	end
	return math.min(math.floor(share * math.max(recent, reported)) + floor, limits)
end

prune()
seat = sit()
local known = theirs == epoch
pairs_of(function(slot, n)
	if slot > current - lag - 6 and slot <= current + 6 then redis.call('HINCRBY', key, 'd' .. slot, n) end
end)
pairs_of(function(slot, n)
	if known and slot >= current and slot < last then lease(slot, n) end
end)
local limit = measure()

-- A slot has a seventh of the limit.
local rooms = {}
for i = 0, 6 do rooms[i] = math.floor(limit / 7) + (i * 3 % 7 < limit % 7 and 1 or 0) end
local function free(slot)
	local counts, i = find(slot)
	return math.max(rooms[slot % 7] - counts[i], 0)
end

local granted = {}
local function take(slot, n)
	lease(slot, n)
	local ahead = slot - current
	granted[ahead] = (granted[ahead] or 0) + n
end

-- The slots from fullFrom on and before fullTo have no room.
local fullFrom, fullTo = last, last

-- sweep takes n from the first slots with room, and returns the first slot with
-- room left.
local function sweep(from, n)
	local s = from
	while s < last do
		if s >= fullFrom and s < fullTo then s = fullTo end
		if s >= last then break end
		local left = free(s)
		if left > 0 and n > 0 then
			local some = math.min(left, n)
			take(s, some)
			n, left = n - some, left - some
		end
		if left > 0 then break end
		s = s + 1
	end
	if s - from > fullTo - fullFrom then fullFrom, fullTo = from, s end
	return s
end

-- spread takes n from evenly spaced slots, and what has no room there from the
-- first slots with room.
local function spread(from, to, n)
	local short = 0
	for i = 0, n - 1 do
		local s = from + math.floor((i + 0.5) * (to - from) / n)
		if free(s) > 0 then take(s, 1) else short = short + 1 end
	end
	return sweep(from, short)
end

local open = {}
for _ = 1, number() do
	local from, to, n = math.max(number(), current), number(), number()
	to = math.min(math.max(to, from + 1), last)
	if settled and known and from < last then
		open[#open + 1] = from
		open[#open + 1] = spread(from, to, n)
	end
end
store()
redis.call('PEXPIRE', key, math.ceil((horizon + 3 * lag) * width / 1000))

local reply = { time[1], time[2], epoch, calls, settled and 1 or 0, seat, limit, #open / 2 }
for _, s in ipairs(open) do reply[#reply + 1] = s end
for ahead, n in pairs(granted) do
	reply[#reply + 1] = current + ahead
	reply[#reply + 1] = n
end
return reply
