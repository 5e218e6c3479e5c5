package gallery

// capacity are incidents in which the dependency bears less than the workers ask for.
var capacity = []Incident{
	{
		Name:   "backlog of 8 h against a rate limit",
		Story:  "For eight hours nothing can be reached, and 45,000 messages wait. Then the dependency allows 50 calls a second, and answers others with status 429.",
		Length: 8 * hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(45_000, 8*hour, 8*hour+30*minute)}},
		Server:  afterwards(fails(errRefused), limits(50)),
		// At 50 a second, less what still comes in, 45,000 take 15m29s.
		Wants: []Want{served(""), doneWithin(20 * minute), runsUpTo("", 1.5)},
	},
	{
		Name:  "dependency that is cold after an outage",
		Story: "After 20 minutes of outage the dependency bears 2 calls at once for two minutes, and 20 later. One more breaks it for 30 s, and it is cold again. Five messages a second.",
		Warm:  10 * minute, Length: 20 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, 45*minute)}},
		Server:  afterwards(fails(errRefused), fragile(20, 2)),
		Wants:   []Want{served(""), doneWithin(hour), collapsesUpTo(10)},
	},
	{
		Name:  "the same with 100 handlers",
		Story: "The same dependency, and a Concurrency of 100.",
		Warm:  10 * minute, Length: 20 * minute, Watch: 25 * hour, Handlers: 100,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, 45*minute)}},
		Server:  afterwards(fails(errRefused), fragile(20, 2)),
		Wants:   []Want{served(""), doneWithin(hour), collapsesUpTo(10)},
	},
	{
		Name:  "metastable queue, outage of 5 s",
		Story: "The dependency answers 120 calls a second in turn, and works on calls whose caller has given up, too. There are 200 handlers, their timeout is 1 s, and 100 messages come in a second. For 5 s nothing can be reached.",
		Warm:  minute, Length: 5 * second, Watch: 25 * hour, Handlers: 200, Timeout: second,
		Traffic: []Stream{{Name: "orders", Load: rate(100, second, 6*minute)}},
		Server:  afterwards(fails(errRefused), queues(120)),
		Wants:   []Want{served(""), recoveredWithin(minute)},
	},
	{
		Name:  "metastable queue, burst of 1,000",
		Story: "The same dependency, and no outage but 1,000 messages at once. At best they take 50 s.",
		Warm:  minute, Length: second, Watch: 25 * hour, Handlers: 200, Timeout: second,
		Traffic: []Stream{
			{Name: "orders", Load: rate(100, second, 6*minute)},
			{Name: "burst", Topic: "orders", Load: rate(1000, second, second).from(minute)},
		},
		Server: queues(120),
		Wants:  []Want{served(""), recoveredWithin(75 * second)},
	},
	{
		Name:   "more than the dependency can do",
		Story:  "The same dependency, and 150 messages a second for half an hour.",
		Length: 30 * minute, Watch: 0, Handlers: 200, Timeout: second,
		Traffic: []Stream{{Name: "orders", Load: rate(150, second, 30*minute)}},
		Server:  queues(120),
		// 90 % of 120/s.
		Wants: []Want{servedShare("orders", 0.72), noneDead("orders")},
	},
	{
		Name:  "load after an outage",
		Story: "For an hour nothing can be reached, at 20 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, hour+30*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), rampUpTo(20, 1), doneWithin(10 * minute)},
	},
	{
		Name:  "brownout",
		Story: "For 30 minutes calls take 10 to 29 s, not 1 s, at 5 messages a second. Without timeouts.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, hour), Calls: when(inIncident, between(10*second, 29*second), takes(second))}},
		// 9,000 messages wait, and 10 slots serve 5 a second more than come in.
		Wants: []Want{served(""), doneWithin(hour)},
	},
	{
		Name:  "brownout, 70 % run into the timeout",
		Story: "The same with calls of 21 to 51 s, and HandlerTimeout is 30 s.",
		Warm:  10 * minute, Length: 30 * minute, Watch: 25 * hour, Timeout: 30 * second,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, hour), Calls: when(inIncident, between(21*second, 51*second), takes(second))}},
		Wants:   []Want{served(""), doneWithin(hour)},
	},
}

// fleets are incidents of several workers.
var fleets = []Incident{
	{
		Name:  "load after an outage, ten workers",
		Story: "For an hour nothing can be reached, at 20 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Workers: 10,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, hour+30*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), rampUpTo(20, 10), doneWithin(10 * minute)},
	},
	{
		Name:  "load after an outage of 5 min, ten workers",
		Story: "For five minutes nothing can be reached, at 20 messages a second.",
		Warm:  10 * minute, Length: 5 * minute, Watch: 25 * hour, Workers: 10,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 30*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), rampUpTo(20, 10), doneWithin(10 * minute)},
	},
	{
		Name:  "load after an outage of 5 min, a hundred workers",
		Story: "For five minutes nothing can be reached, at 20 messages a second. The workers share a budget.",
		Warm:  10 * minute, Length: 5 * minute, Watch: 25 * hour, Workers: 100, Shared: true,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, 30*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), rampUpTo(20, 100), doneWithin(10 * minute)},
	},
	rolling("poison", fails(errPoison)),
	rolling("panics", panics),
	rolling("errors of no known class", fails(errPlain)),
	{
		Name:   "start of ten workers before a backlog",
		Story:  "Ten workers start at once, 20,000 messages wait, and the dependency allows 100 calls a second. It answers others with status 429.",
		Length: second, Watch: 25 * hour, Workers: 10,
		Traffic: []Stream{{Name: "orders", Load: atOnce(20_000)}},
		Server:  limits(100),
		// 1.3 times the ideal of 199 s.
		Wants: []Want{served(""), doneWithin(259 * second), runsUpTo("", 1.5)},
	},
	{
		Name:  "evicted workers",
		Story: "Three workers are killed and started again every 10 minutes, for an hour. Handlers take 2 s, and leases are of 30 s.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Workers: 3, KillEvery: 10 * minute,
		Traffic: []Stream{{Name: "orders", Load: rate(5, second, hour+20*minute), Calls: takes(2 * second)}},
		Wants:   []Want{served(""), waitUpTo("", 45*second)},
	},
	{
		Name:  "outage, and workers are killed",
		Story: "For two hours nothing can be reached, and the worker is killed and started again every 10 minutes.",
		Warm:  10 * minute, Length: 2 * hour, Watch: 25 * hour, KillEvery: 10 * minute,
		Traffic: []Stream{{Name: "orders", Load: rate(1, second, 2*hour+20*minute), Calls: meanwhile(fails(errRefused))}},
		Wants:   []Want{served(""), doneWithin(10 * minute)},
	},
	{
		Name:   "a message that kills its worker",
		Story:  "The handler of one message kills its worker, each time; there are two workers, which start again at once. Leases are of 30 s, and one good message comes in a second.",
		Length: hour, Watch: 25 * hour, Workers: 2,
		Traffic: []Stream{
			{Name: "bomb", Topic: "orders", Load: atOnce(1), Calls: kills},
			{Name: "good", Topic: "orders", Good: true, Load: rate(1, second, hour), Calls: fine},
		},
		Wants: []Want{served("good"), waitUpTo("good", minute), allDead("bomb", "crash-loop")},
	},
	{
		Name:   "leases cannot be extended",
		Story:  "For 20 minutes leases of 30 s cannot be extended. Handlers take a minute.",
		Length: 20 * minute, Watch: 25 * hour, NoExtensions: true,
		Traffic: []Stream{{Name: "orders", Load: rate(15, minute, 20*minute), Calls: takes(minute)}},
		Wants:   []Want{served("")},
	},
}

// rolling is a deployment of which only one of five workers has seen a faulty version.
func rolling(with string, bad Dependency) Incident {
	return Incident{
		Name:  "one of five workers is bad: " + with,
		Story: "A rolling deployment stops after the first of five workers, whose handler is faulty for an hour, at 20 messages a second.",
		Warm:  10 * minute, Length: hour, Watch: 25 * hour, Workers: 5,
		Traffic: []Stream{{Name: "orders", Load: rate(20, second, hour+20*minute), Calls: meanwhile(onOneWorker(bad))}},
		Wants:   []Want{served(""), waitUpTo("", 2*minute)},
	}
}
