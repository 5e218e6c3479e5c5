package gallery

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// tenants are incidents of some of many customers.
var tenants = []Incident{
	{
		Name:  "5,000 tenants, 10 % down",
		Story: "For 20 minutes the hosts of 10 % of 5,000 tenants cannot be reached, at 20 messages a second. TopicConfig.DependencyOf names the tenant.",
		Warm:  10 * minute, Length: 20 * minute, Watch: 25 * hour, Bulkhead: true,
		Traffic: named5000(0.1, 20, 40*minute, meanwhile(fails(errRefused))),
		Wants:   []Want{served(""), waitUpTo("others", 10*second), amplifiedUpTo(1.16)},
	},
	{
		Name:  "5,000 tenants, 40 % down",
		Story: "For an hour the hosts of 40 % of 5,000 tenants cannot be reached, at 50 messages a second. TopicConfig.DependencyOf names the tenant.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Bulkhead: true,
		Traffic: named5000(0.4, 50, hour+20*minute, meanwhile(fails(errRefused))),
		Wants:   []Want{served(""), waitUpTo("others", 10*second)},
	},
	{
		Name:  "3 of 100 tenants hang",
		Story: "For an hour the hosts of 3 of 100 tenants give no answer, at 10 messages a second. TopicConfig.DependencyOf names the tenant.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Bulkhead: true,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(9.7, second, hour+20*minute), Keys: 97, Calls: fine},
			{Name: "three", Topic: "orders", Load: rate(0.3, second, hour+20*minute), Keys: 3, Calls: meanwhile(hangs)},
		},
		Wants: []Want{served(""), waitUpTo("others", 10*second)},
	},
	{
		Name:  "one of four shards is down",
		Story: "For 30 minutes one of four shards of a database cannot be reached, at 20 messages a second. TopicConfig.DependencyOf names the shard.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour, Bulkhead: true,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(15, second, hour), Keys: 3, Calls: fine},
			{Name: "shard", Topic: "orders", Load: rate(5, second, hour), Keys: 1, Calls: meanwhile(fails(errRefused))},
		},
		Wants: []Want{served(""), waitUpTo("others", 10*second), doneWithin(20 * minute)},
	},
	{
		Name:  "one customer in a hundred hangs, without a name",
		Story: "For an hour the host of one customer in a hundred gives no answer, at 30,000 messages an hour. HandlerTimeout is 10 s, and no DependencyOf.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Timeout: 10 * second,
		Traffic: customers(hour+20*minute, meanwhile(hangs)),
		Wants:   []Want{served("others"), waitUpTo("others", 10*second)},
	},
	{
		Name:   "one key of 1,000 hangs, in order",
		Story:  "For an hour the calls of one of 1,000 keys get no answer, at 20 messages a second, with OrderByKey.",
		Length: hour, Watch: 25 * hour, Ordered: true,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(19.98, second, hour), Keys: 999, Calls: fine},
			{Name: "key", Topic: "orders", Load: rate(0.02, second, hour), Keys: 1, Calls: meanwhile(hangs)},
		},
		Wants: []Want{served("others"), waitUpTo("others", 2*second)},
	},
	{
		Name:  "outage, in order",
		Story: "For 30 minutes nothing can be reached, at 10 messages a second of 100 keys, with OrderByKey.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour, Ordered: true,
		Traffic: []Stream{{Name: "orders", Load: rate(10, second, hour), Keys: 100, Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
}

// named5000 are the messages of 5,000 tenants, a share of which meets the incident.
func named5000(share, perSecond float64, length time.Duration, bad Dependency) []Stream {
	down := int(share * 5000)
	return []Stream{
		{Name: "others", Topic: "orders", Good: true, Load: rate((1-share)*perSecond, second, length), Keys: 5000 - down, Calls: fine},
		{Name: "down", Topic: "orders", Load: rate(share*perSecond, second, length), Keys: down, Calls: bad},
	}
}

// messages are incidents in which messages or the handler are at fault.
var messages = []Incident{
	{
		Name:   "500 poison rows",
		Story:  "A file brings 500 rows at once that are poison. One good message comes in a minute, for four hours.",
		Length: hour, Watch: 4 * hour,
		Traffic: rows(500, errPoison, 4*hour),
		Wants:   []Want{served("good"), waitUpTo("good", 10*second), waitUpTo("rows", 2*hour), allDead("rows", "poison")},
	},
	{
		Name:   "the first 50 are poison",
		Story:  "The first 50 messages after a start are poison. One good message comes in a second.",
		Length: hour, Watch: 4 * hour,
		Traffic: []Stream{
			{Name: "poison", Topic: "orders", Load: atOnce(50), Calls: fails(errPoison)},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, second, hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", 10*second), allDead("poison", "poison")},
	},
	{
		Name:   "500 hopeless rows",
		Story:  "A file brings 500 rows at once that fail each time with an error that nothing is known about. One good message comes in a minute, for 26 hours.",
		Length: 26 * hour, Watch: hour,
		Traffic: rows(500, errPlain, 26*hour),
		Wants:   []Want{served("good"), waitUpTo("good", 10*minute), deadFrom("rows", 500)},
	},
	{
		Name:   "five hopeless messages alone",
		Story:  "Five messages fail each time with an error that nothing is known about, and nothing else comes in for a day.",
		Length: 24 * hour, Watch: 2 * hour,
		Traffic: []Stream{{Name: "hopeless", Load: atOnce(5), Calls: fails(errPlain)}},
		Wants:   []Want{runsUpTo("hopeless", 200), deadFrom("hopeless", 5)},
	},
	refused(40),
	refused(1500),
	{
		Name:   "every seventh run panics",
		Story:  "A seventh of the runs panics, by chance, for an hour, at 20 messages a second.",
		Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, hour+10*minute), Calls: meanwhile(some(1.0/7, panics))}},
		Wants:   []Want{deadUpTo("", 7), waitUpTo("", 10*minute), doneWithin(10 * minute)},
	},
	{
		Name:   "rows that hang their batch",
		Story:  "A batch handler inserts a hundred rows at once. Of 5,000 rows one in 500 hangs its batch. One good row comes in a second.",
		Length: second, Watch: 25 * hour, Batch: 100,
		Traffic: []Stream{
			{Name: "good", Topic: "rows", Good: true, Load: rate(4990, second, second), Calls: fine},
			{Name: "bad", Topic: "rows", Load: rate(10, second, second), Calls: hangs},
			{Name: "later", Topic: "rows", Good: true, Load: rate(1, second, 6*hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", 15*minute), served("later"), waitUpTo("later", 15*minute), deadFrom("bad", 10), waitUpTo("bad", 6*hour)},
	},
	{
		Name:   "a burst of which 1 % hangs",
		Story:  "10,000 messages come at once, and the calls of 1 % never get an answer.",
		Length: second, Watch: 50 * hour,
		Traffic: []Stream{
			{Name: "good", Topic: "orders", Good: true, Load: rate(9900, second, second), Calls: fine},
			{Name: "bad", Topic: "orders", Load: rate(100, second, second), Calls: hangs},
		},
		// The first runs of the bad ones alone take 50 minutes of all slots.
		Wants: []Want{served("good"), waitUpTo("good", hour)},
	},
	{
		Name:  "deployment with errors of no known class",
		Story: "For ten minutes a faulty handler fails with every message, at 20 messages a second.",
		Warm:  10 * minute, Length: 10 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 40*minute), Calls: meanwhile(fails(errPlain))}},
		// 12,000 take 9m31s at best, at 21 retries a second; the longest delay is 15 minutes.
		Wants: []Want{served(""), doneWithin(15 * minute)},
	},
	{
		Name:  "deployment that panics",
		Story: "For ten minutes a faulty handler panics with every message, at 20 messages a second.",
		Warm:  10 * minute, Length: 10 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 40*minute), Calls: meanwhile(panics)}},
		// 12,000 take 9m31s at best, at 21 retries a second; the longest delay is 15 minutes.
		Wants: []Want{served(""), doneWithin(15 * minute)},
	},
	{
		Name:  "poison rows in an outage",
		Story: "For 30 minutes nothing can be reached, at 5 messages a second. Meanwhile a file brings 300 rows that are poison.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour,
		Traffic: []Stream{
			{Name: "orders", Load: rate(5, second, hour), Calls: meanwhile(fails(errRefused))},
			{Name: "rows", Topic: "orders", Load: rate(300, second, second).from(20 * minute), Calls: fails(errPoison)},
		},
		Wants: []Want{served("orders"), allDead("rows", "poison"), waitUpTo("rows", 2*hour)},
	},
}

// rows are what a file brings, beside one good message a minute.
func rows(count int, err error, length time.Duration) []Stream {
	return []Stream{
		{Name: "rows", Topic: "orders", Load: atOnce(count), Calls: fails(err)},
		{Name: "good", Topic: "orders", Good: true, Load: rate(1, minute, length), Calls: fine},
	}
}

// refused has hopeless messages and a dead-letter topic that refuses.
func refused(count int) Incident {
	return Incident{
		Name:   fmt.Sprintf("%d hopeless messages, and the dead-letter topic refuses", count),
		Story:  fmt.Sprintf("%d messages fail each time with an error that nothing is known about. One good message comes in a second, for two hours. For the first hour the dead-letter topic refuses.", count),
		Length: hour, Watch: 25 * hour, NoDeadLetters: true,
		Traffic: []Stream{
			{Name: "hopeless", Topic: "orders", Load: atOnce(count), Calls: fails(errPlain)},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, second, 2*hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", 10*minute), deadFrom("hopeless", count)},
	}
}

// long are outages of a day and more.
var long = []Incident{
	{
		Name:  "a message an hour, status 503 for a day",
		Story: "For a day calls are answered with status 503, and one message comes in an hour.",
		Warm:  90 * minute, Length: 24 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(1, hour, 28*hour), Calls: meanwhile(fails(status(503)))}},
		// 3,000 runs of 28 messages.
		Wants: []Want{served(""), doneWithin(10 * minute), runsUpTo("", 107)},
	},
	{
		Name:  "outage of 60 h",
		Story: "For 60 hours nothing can be reached, and one message comes in ten minutes.",
		Warm:  hour, Length: 60 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(6, hour, 62*hour), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), callsUpTo(1), doneWithin(20 * minute)},
	},
	{
		Name:  "maintenance of 4 h, three workers",
		Story: "For four hours nothing can be reached, at one message a second.",
		Warm:  10 * minute, Length: 4 * hour, Watch: 25 * hour, Workers: 3,
		Traffic: []Stream{{Name: "orders", Load: rate(1, second, 4*hour+20*minute), Calls: meanwhile(fails(errRefused))}},
		// A probe each 600th of the outage, but one a second at most: 2,510 for each worker.
		Wants: []Want{served(""), doneWithin(10 * minute), amplifiedUpTo(0.53)},
	},
}

// daily are incidents that most teams know.
var daily = []Incident{
	{
		Name:  "failover of a database",
		Story: "Calls are refused for 40 s, at 50 messages a second.",
		Warm:  10 * minute, Length: 40 * second, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(50, second, 15*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(2 * minute), rampUpTo(50, 1)},
	},
	{
		Name:  "slow name server",
		Story: "For ten minutes every call takes 5 s more, at one message a second.",
		Warm:  10 * minute, Length: 10 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(1, second, 30*minute), Calls: meanwhile(takes(5 * second))}},
		Wants:   []Want{served(""), waitUpTo("", 10*second), runsUpTo("", 1)},
	},
	{
		Name:   "token that expires every hour",
		Story:  "At the end of each hour calls are answered with status 401 for 30 s, for four hours, at 10 messages a second.",
		Length: 4 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(10, second, 4*hour+10*minute), Calls: meanwhile(flapping(hour-30*second, 30*second, fails(status(401))))}},
		Wants:   []Want{served(""), waitUpTo("", 2*minute)},
	},
	{
		Name:  "quota that is used up",
		Story: "For 40 minutes calls are answered with status 429, and Retry-After says when these end, at 5 messages a second.",
		Warm:  10 * minute, Length: 40 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, hour+10*minute), Calls: meanwhile(quota)}},
		Wants:   []Want{served(""), doneWithin(10 * minute), runsUpTo("", 1.2)},
	},
	{
		Name:  "a hot tenant and its own limit",
		Story: "5,000 messages of one tenant come at once, whose limit is 10 calls a second, with status 429 beyond. Others bring 5 messages a second. TopicConfig.DependencyOf names the tenant.",
		Warm:  10 * minute, Length: second, Watch: 25 * hour, Bulkhead: true,
		Traffic: []Stream{
			{Name: "others", Topic: "orders", Good: true, Load: rate(5, second, 30*minute), Keys: 100, Calls: fine},
			{Name: "hot", Topic: "orders", Load: rate(5000, second, second).from(10 * minute), Keys: 1},
		},
		Server: limits(10),
		// Twice the ideal time for the hot one.
		Wants: []Want{served(""), waitUpTo("others", 10*second), doneWithin(17 * minute)},
	},
	{
		Name:  "half of the calls are refused",
		Story: "For ten minutes half of the calls are refused, by chance, at 20 messages a second.",
		Warm:  10 * minute, Length: 10 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 40*minute), Calls: meanwhile(some(0.5, fails(errRefused)))}},
		// The longest delay of a retry is 15 minutes.
		Wants: []Want{served(""), doneWithin(16 * minute)},
	},
	{
		Name:  "45 s down, 15 s up",
		Story: "The dependency is up for 15 s and down for 45 s, again and again for an hour, at 50 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(50, second, hour+20*minute), Calls: meanwhile(flapping(15*second, 45*second, fails(errRefused)))}},
		Wants:   []Want{served(""), doneWithin(6 * minute)},
	},
	{
		Name:   "import at night",
		Story:  "30,000 messages come at once, beside two a second, and nothing is wrong.",
		Length: second, Watch: hour,
		Traffic: []Stream{
			{Name: "import", Topic: "orders", Load: atOnce(30_000), Calls: fine},
			{Name: "live", Topic: "orders", Good: true, Load: rate(2, second, 10*minute), Calls: fine},
		},
		// Ten slots need 30 s.
		Wants: []Want{served(""), waitUpTo("", 40*second)},
	},
	{
		Name:  "batches in an outage",
		Story: "For half an hour nothing can be reached, at 20 messages a second, and handlers take batches of a hundred.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour, Batch: 100,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 45*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
	{
		Name:   "sent back: ten thousand that are mended",
		Story:  "Ten thousand dead letters are sent back whose calls succeed now, beside 20 orders a second.",
		Length: 20 * minute, Watch: hour,
		Traffic: []Stream{liveOrders, {Name: "letters", Topic: "orders", Back: true, Load: atOnce(10_000), Calls: fine}},
		Wants:   []Want{served(""), waitUpTo("orders", second), waitUpTo("letters", 10*minute)},
	},
	{
		Name:  "some calls are answered with status 503, and Retry-After",
		Story: "For 20 minutes a tenth of the calls are answered with status 503 and Retry-After 30 s, by chance, at 20 messages a second.",
		Warm:  10 * minute, Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 40*minute), Calls: meanwhile(some(0.1, fails(&classify.HTTPError{Status: 503, Wait: 30 * second})))}},
		// The first run, and three retries 30 s to 36 s apart.
		Wants: []Want{served(""), waitUpTo("", 5*minute), doneWithin(5 * minute)},
	},
	{
		Name:  "a tenth is poison",
		Story: "For an hour a tenth of 20 messages a second is poison.",
		Warm:  10 * minute, Length: hour, Watch: hour,
		Traffic: []Stream{
			{Name: "good", Topic: "orders", Good: true, Load: rate(18, second, hour+10*minute), Calls: fine},
			{Name: "poison", Topic: "orders", Load: rate(2, second, hour+10*minute), Calls: fails(errPoison)},
		},
		Wants: []Want{served("good"), waitUpTo("good", second), allDead("poison", "poison"), runsUpTo("poison", 1)},
	},
}
