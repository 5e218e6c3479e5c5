package gallery

import (
	"slices"
	"time"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

// steadyOrders are 20 a second, for an hour, that nothing is wrong with.
var steadyOrders = Stream{Name: "orders", Good: true, Load: rate(20, second, hour), Calls: fine}

// liveOrders are 20 a second, for 20 minutes, beside what is sent back.
var liveOrders = Stream{Name: "orders", Good: true, Load: rate(20, second, 20*minute), Calls: fine}

// Incidents lists what can happen.
var Incidents = slices.Concat(parts, capacity, fleets, tenants, messages, long, daily)

// parts are incidents of a dependency, of one of two topics, of a few messages, or
// of a part of the traffic.
var parts = []Incident{
	// One dependency, and all of it is down.
	{
		Name:   "dependency hangs, timeout 30 s",
		Story:  "For two hours calls get no answer, and HandlerTimeout is 30 s. A thousand messages wait.",
		Length: 2 * hour, Watch: 25 * hour, Timeout: 30 * second,
		Traffic: []Stream{{Name: "orders", Load: atOnce(1000), Calls: meanwhile(hangs)}},
		Wants:   []Want{served("")},
	},
	{
		Name:   "dependency hangs",
		Story:  "For two hours calls get no answer. A thousand messages wait.",
		Length: 2 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: atOnce(1000), Calls: meanwhile(hangs)}},
		Wants:   []Want{served("")},
	},
	{
		Name:  "status 500",
		Story: "For two hours calls are answered with status 500.",
		Warm:  10 * minute, Length: 2 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(1, second, 2*hour+20*minute), Calls: meanwhile(fails(status(500)))}},
		Wants:   []Want{served(""), amplifiedUpTo(1.12)},
	},
	{
		Name:  "outage of 8 h",
		Story: "For eight hours nothing can be reached.",
		Warm:  10 * minute, Length: 8 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, 8*hour+40*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
	{
		Name:  "quiet topic, status 503",
		Story: "Ten messages a minute, and an hour of status 503.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(10, minute, 2*hour), Calls: meanwhile(fails(status(503)))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
	{
		Name:  "credentials expired",
		Story: "For 20 minutes every call is answered with status 401.",
		Warm:  10 * minute, Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, hour), Calls: meanwhile(fails(status(401)))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
	{
		Name:  "bad deployment",
		Story: "For an hour a faulty handler takes every message for poison, at 20 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 2*hour), Calls: meanwhile(fails(errPoison))}},
		Wants:   []Want{deadUpTo("", 120)},
	},

	// Two topics of one Consumer: what happens to one is nothing to the other.
	{
		Name:   "orders alone",
		Story:  "The measure for the next four: 20 orders a second, for an hour, and nothing happens.",
		Length: hour, Watch: second,
		Traffic: []Stream{steadyOrders},
		Wants:   []Want{servedShare("orders", 1)},
	},
	{
		Name:   "orders beside a topic that is down",
		Story:  "The server that mails need is down, for an hour.",
		Length: hour, Watch: second,
		Traffic: []Stream{steadyOrders, {Name: "mails", Load: rate(20, second, hour), Calls: fails(errRefused)}},
		Wants:   []Want{servedShare("orders", 0.95), noneDead("mails")},
	},
	{
		Name:   "orders beside a topic that is throttled",
		Story:  "The server that mails need answers with status 429 and Retry-After 10 min, for an hour.",
		Length: hour, Watch: second,
		Traffic: []Stream{steadyOrders, {Name: "mails", Load: rate(20, second, hour), Calls: fails(throttled(10 * minute))}},
		Wants:   []Want{servedShare("orders", 0.95), noneDead("mails")},
	},
	{
		Name:   "orders beside a slow topic",
		Story:  "Mails take a minute each, and more of them come in than can be sent.",
		Length: hour, Watch: second,
		Traffic: []Stream{steadyOrders, {Name: "mails", Load: rate(20, second, hour), Calls: takes(minute)}},
		Wants:   []Want{servedShare("orders", 0.95), noneDead("mails")},
	},
	{
		Name:   "orders beside a topic of poison",
		Story:  "All mails are poison, for an hour.",
		Length: hour, Watch: second,
		Traffic: []Stream{steadyOrders, {Name: "mails", Load: rate(20, second, hour), Calls: fails(errPoison)}},
		Wants:   []Want{servedShare("orders", 0.95)},
	},
	{
		Name:   "5 % of the traffic is down",
		Story:  "The dependency of one topic is down for an hour; that topic is 5 % of what the Consumer handles.",
		Length: hour, Watch: 25 * hour,
		Traffic: []Stream{
			{Name: "orders", Good: true, Load: rate(19, second, 2*hour), Calls: fine},
			{Name: "mails", Load: rate(1, second, 2*hour), Calls: meanwhile(fails(errRefused))},
		},
		Wants: []Want{served(""), waitUpTo("orders", 10*second)},
	},

	// A few messages that are themselves the fault.
	{
		Name:   "five hopeless messages on the same topic",
		Story:  "Five messages fail each time with an error that nothing is known about. One good message comes in a minute, for 23 hours.",
		Length: 23 * hour, Watch: 3 * hour,
		Traffic: []Stream{
			{Name: "hopeless", Topic: "orders", Load: atOnce(5), Calls: fails(errPlain)},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, minute, 23*hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", minute), allDead("hopeless", "unclassified")},
	},
	{
		Name:   "five hopeless messages on another topic",
		Story:  "The same, and nothing else comes in on their topic.",
		Length: 23 * hour, Watch: 3 * hour,
		Traffic: []Stream{
			{Name: "hopeless", Load: atOnce(5), Calls: fails(errPlain)},
			{Name: "good", Good: true, Load: rate(1, minute, 23*hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", minute), deadFrom("hopeless", 5)},
	},
	{
		Name:   "one bad certificate, and Retry-After of a day",
		Story:  "The call of one message meets a bad certificate, that of another is answered with Retry-After: 86400. One good message comes in a second, for 24 hours.",
		Length: 24 * hour, Watch: hour,
		Traffic: []Stream{
			{Name: "certificate", Topic: "orders", Load: atOnce(1), Calls: fails(errCertificate)},
			{Name: "tomorrow", Topic: "orders", Load: atOnce(1), Calls: fails(throttled(24 * hour))},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, second, 24*hour+minute), Calls: fine},
		},
		Wants: []Want{
			served("good"), waitUpTo("good", 10*second),
			deadFrom("certificate", 1), deadFrom("tomorrow", 1),
		},
	},
	{
		Name:   "bulk insert with bad rows",
		Story:  "A batch handler inserts a hundred messages at once, and one row in 500 makes the whole insert fail. Ten seconds later it is one good row a second.",
		Length: 10 * second, Watch: 25 * hour, Batch: 100,
		Traffic: []Stream{
			{Name: "good", Topic: "rows", Good: true, Load: rate(1996, second, 10*second), Calls: fine},
			{Name: "bad", Topic: "rows", Load: rate(4, second, 10*second), Calls: fails(errBulk)},
			{Name: "later", Topic: "rows", Good: true, Load: rate(1, second, 2*hour), Calls: fine},
		},
		Wants: []Want{served("good"), allDead("bad", "unclassified"), doneWithin(hour)},
	},
	{
		Name:   "60 % poison",
		Story:  "A producer's bug makes 60 % of a topic poison, for 90 minutes. One good message comes in a second, for 12 hours.",
		Length: 90 * minute, Watch: 10*hour + 31*minute,
		Traffic: []Stream{
			{Name: "poison", Topic: "orders", Load: rate(1.5, second, 90*minute), Calls: fails(errPoison)},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, second, 12*hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", minute), allDead("poison", "poison")},
	},
	{
		Name:   "dead-letter topic refuses",
		Story:  "The dead-letter topic refuses for an hour, and 1 % of 50 messages a second is poison.",
		Length: hour, Watch: 25 * hour, NoDeadLetters: true,
		Traffic: []Stream{
			{Name: "poison", Topic: "orders", Load: rate(0.5, second, hour+10*minute), Calls: fails(errPoison)},
			{Name: "good", Topic: "orders", Good: true, Load: rate(49.5, second, hour+10*minute), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", 10*second), allDead("poison", "poison"), runsUpTo("poison", 1)},
	},

	// Dead letters are sent back beside live traffic.
	{
		Name:   "sent back: a hundred poison letters, and one 401",
		Story:  "A hundred dead letters are sent back that are poison still, and one whose call is answered with status 401, beside 20 orders a second.",
		Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{
			liveOrders,
			{Name: "poison", Topic: "orders", Back: true, Load: atOnce(100), Calls: fails(errPoison)},
			{Name: "401", Topic: "orders", Back: true, Load: atOnce(1), Calls: fails(status(401))},
		},
		Wants: []Want{served("orders"), waitUpTo("orders", second), allDead("poison", "poison"), runsUpTo("poison", 1), allDead("401", "expired")},
	},
	{
		Name:   "sent back: four thousand that fail",
		Story:  "Four thousand dead letters are sent back whose calls cannot be made, beside 20 orders a second.",
		Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{
			liveOrders,
			{Name: "letters", Topic: "orders", Back: true, Load: atOnce(4000), Calls: fails(errRefused)},
		},
		Wants: []Want{served("orders"), waitUpTo("orders", second), allDead("letters", "exhausted")},
	},
	{
		Name:   "sent back: a hundred that hang",
		Story:  "A hundred dead letters are sent back whose calls get no answer, beside 20 orders a second.",
		Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{
			liveOrders,
			{Name: "letters", Topic: "orders", Back: true, Load: atOnce(100), Calls: hangs},
		},
		Wants: []Want{served("orders"), waitUpTo("orders", second), allDead("letters", "timeout")},
	},
	{
		Name:  "sent back during an outage",
		Story: "For an hour nothing can be reached. Meanwhile a thousand dead letters are sent back, one every two seconds; orders come in at 5 a second until half an hour after it.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{
			{Name: "orders", Load: rate(5, second, hour+40*minute), Calls: meanwhile(fails(errRefused))},
			{Name: "letters", Topic: "orders", Back: true, Load: rate(0.5, second, 2000*second), Calls: meanwhile(fails(errRefused))},
		},
		Wants: []Want{served(""), doneWithin(20 * minute), amplifiedUpTo(1.12)},
	},

	// A part of the dependency fails.
	{
		Name:   "one customer in a hundred: 401",
		Story:  "Calls for one customer in a hundred are answered with status 401, for 6 hours.",
		Length: 6 * hour, Watch: minute,
		Traffic: customers(6*hour, fails(status(401))),
		Wants:   []Want{served("others"), waitUpTo("others", 10*second)},
	},
	{
		Name:   "one customer in a hundred: 429",
		Story:  "Calls for one customer in a hundred are answered with status 429 and Retry-After 1 min, for 6 hours.",
		Length: 6 * hour, Watch: minute,
		Traffic: customers(6*hour, fails(throttled(minute))),
		Wants:   []Want{served("others"), waitUpTo("others", 10*second)},
	},
	{
		Name:  "a fifth of the customers: 429",
		Story: "For ten minutes calls for 20 of 100 customers are answered with status 429, however few they are, at 50 messages a second. TopicConfig.DependencyOf is not set.",
		Warm:  10 * minute, Length: 10 * minute, Watch: minute,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(40, second, 20*minute), Keys: 80, Calls: fine},
			{Name: "fifth", Topic: "orders", Load: rate(10, second, 20*minute), Keys: 20, Calls: meanwhile(fails(status(429)))},
		},
		Wants: []Want{served("others"), waitUpTo("others", 30*second)},
	},
	{
		Name:   "bulkhead, one customer in a hundred: down",
		Story:  "The host of one customer in a hundred cannot be reached for an hour. TopicConfig.DependencyOf names the customer.",
		Length: hour, Watch: 25 * hour, Bulkhead: true,
		Traffic: customers(2*hour, meanwhile(fails(errRefused))),
		Wants:   bulkhead,
	},
	{
		Name:   "bulkhead, one customer in a hundred: hangs",
		Story:  "The host of one customer in a hundred gives no answer for an hour. TopicConfig.DependencyOf names the customer.",
		Length: hour, Watch: 25 * hour, Bulkhead: true,
		Traffic: customers(2*hour, meanwhile(hangs)),
		Wants:   bulkhead,
	},
	{
		Name:   "bulkhead, one customer in a hundred: 401",
		Story:  "Calls for one customer in a hundred are answered with status 401 for an hour. TopicConfig.DependencyOf names the customer.",
		Length: hour, Watch: 25 * hour, Bulkhead: true,
		Traffic: customers(2*hour, meanwhile(fails(status(401)))),
		Wants:   bulkhead,
	},
	{
		Name:  "a third of the keys is down",
		Story: "For an hour calls for 33 of 100 keys fail, at 100 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(67, second, hour+40*minute), Keys: 67, Calls: fine},
			{Name: "third", Topic: "orders", Load: rate(33, second, hour+40*minute), Keys: 33, Calls: meanwhile(fails(errRefused))},
		},
		// In the first minute there are tokens for all ten attempts of a message.
		Wants: []Want{served("others"), deadUpTo("third", 2), doneWithin(20 * minute), peakUpTo(2), amplifiedUpTo(1.12)},
	},
	{
		Name:  "30 s up, 30 s down",
		Story: "The dependency is up for 30 s and down for 30 s, again and again for an hour, at 50 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(50, second, hour+20*minute), Calls: meanwhile(flapping(30*second, 30*second, fails(errRefused)))}},
		Wants:   []Want{served(""), doneWithin(6 * minute)},
	},
	{
		Name:   "a fifth of the runs fails",
		Story:  "A fifth of the calls fails by chance, for an hour and until all is done, at 100 messages a second.",
		Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(100, second, hour), Calls: some(0.2, fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(10 * minute), waitUpTo("", 10*minute)},
	},
}

// bulkhead is what one customer's incident may do: nothing to others, and its
// own messages wait.
var bulkhead = []Want{
	served("others"), waitUpTo("others", 10*second),
	served("customer"), doneWithin(20 * minute),
}

// customers are 100, with 30,000 messages an hour, one of whom meets the incident.
func customers(length time.Duration, bad Dependency) []Stream {
	return []Stream{
		{Name: "others", Topic: "orders", Good: true, Load: rate(29_700, hour, length), Keys: 99, Calls: fine},
		{Name: "customer", Topic: "orders", Load: rate(300, hour, length), Keys: 1, Calls: bad},
	}
}
