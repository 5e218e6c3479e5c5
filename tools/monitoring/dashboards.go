package main

import "fmt"

// inTime is the objective of the alerts on freshness, in seconds: a bucket of
// redrive_message_age_at_end_seconds.
const inTime = 300

// dashboards are ours, by the name of their file.
func dashboards(root string) (map[string]dashboard, error) {
	tables := map[string]table{}
	for _, page := range []string{workers, letters, service} {
		t, err := readTable(root, page)
		if err != nil {
			return nil, err
		}
		tables[page] = t
	}
	return map[string]dashboard{
		"workers.json": workersBoard(tables[workers]), "topic.json": topicBoard(tables[workers]),
		"dead-letters.json": lettersBoard(tables[workers], tables[letters]), "retry-service.json": serviceBoard(tables[service]),
	}, nil
}

// signals say whether retries do harm.
func (b board) signals() section {
	const runs, deliveries, age = "retry_attempts_total", "redrive_deliveries_total", "redrive_message_age_at_end_seconds"
	by := []string{"topic"}
	ratio := func(above, below string) string { return above + "\n  / " + below }
	retryRate := b.graph("Retry rate", runs, "percentunit", by, ratio(b.per(runs, by, `outcome="retry"`), b.per(runs, by)))
	retryRate.says = "Share of the runs that end in a retry."
	amplification := b.graph("Amplification", runs, "short", by, ratio(b.per(runs, by), b.per(deliveries, by, `kind="fresh"`)))
	amplification.says = "Runs for each new message. 1 is best."
	return section{"Three signals", []graph{retryRate, b.show("p99 including retries", age, "topic"), amplification}}
}

// freshness says whether messages end in time.
func (b board) freshness() section {
	const age, success = "redrive_message_age_at_end_seconds", "redrive_last_success_timestamp_seconds"
	by := []string{"topic"}
	late := b.graph("Late", age, "percentunit", by, fmt.Sprintf("1 - %s\n  / %s", b.per(age+"_bucket", by, fmt.Sprintf(`le=~"%d(\\.0)?"`, inTime)), b.per(age+"_count", by)))
	late.says = fmt.Sprintf("Share of the messages that ended more than %d s after they were published.", inTime)
	since := b.graph("Since the last success", success, "s", by, "time() - max by (topic) ("+b.of(success)+" > 0)")
	return section{"Freshness", []graph{late, b.show("Oldest message in a worker", "redrive_messages_oldest_seconds", "topic"), since}}
}

// flow is what comes and goes.
func (b board) flow() section {
	return section{"Messages", []graph{
		b.show("Received", "redrive_deliveries_total", "topic", "kind"),
		b.show("Runs", "retry_attempts_total", "topic", "outcome"),
		b.show("Errors by class", "retry_attempts_total", "topic", "class"),
		b.show("Settled", "redrive_settlements_total", "topic", "action"),
		b.show("Dead letters", "redrive_dead_letters_total", "topic", "reason"),
		b.show("Put off, uncounted", "redrive_runs_deferred_total", "topic", "reason"),
	}}
}

// inside is what is in the workers.
func (b board) inside() section {
	return section{"In the workers", []graph{
		b.show("In flight", "redrive_messages_in_flight", "topic").with(
			b.show("running", "redrive_messages_running", "topic"), b.show("held", "redrive_messages_held", "topic")),
		b.show("Handlers that ignore the end of their context", "redrive_messages_stuck", "topic"),
		b.show("p99 of the handlers", "redrive_handler_duration_seconds", "topic", "result"),
		b.show("p99 of how late retries start", "redrive_retry_lateness_seconds", "topic"),
		b.show("p99 since the first failure", "retry_task_age_seconds", "topic"),
		b.show("Sent-back messages", "redrive_returned_runs_total", "topic", "result"),
	}}
}

// waiting is what the broker has. Each worker says the same.
func (b board) waiting() section {
	return section{"In the broker", []graph{
		b.highest("Waiting in the broker", "redrive_backlog_messages", "topic", "state"),
		b.show("Oldest in the broker", "redrive_backlog_oldest_seconds", "topic"),
		b.show("Questions to the broker", "redrive_backlog_asks_total", "result"),
	}}
}

// trouble is what the broker fails.
func (b board) trouble() section {
	return section{"Broker", []graph{
		b.show("Leases lost", "redrive_leases_lost_total", "topic"),
		b.show("Leases extended", "redrive_lease_extensions_total", "topic").with(
			b.show("failed", "redrive_lease_extension_errors_total", "topic")),
		b.show("Settlements failed", "redrive_settle_errors_total", "topic", "action"),
		b.show("Nothing received", "redrive_topic_errors_total", "topic").with(
			b.show("from any topic", "redrive_receive_errors_total")),
		b.show("Partitions that stand still", "redrive_partition_stalled", "topic"),
		b.show("Dead letters failed", "redrive_dead_letter_errors_total", "topic").with(
			b.show("refused", "redrive_dead_letters_refused_total", "topic"), b.show("dropped", "redrive_discarded_total", "topic")),
		b.show("Receipts failed", "redrive_receipt_errors_total").with(
			b.show("dropped", "redrive_receipts_dropped_total"), b.show("unreadable deadlines", "redrive_deadline_errors_total", "topic")),
	}}
}

func workersBoard(t table) dashboard {
	b := board{t, variables{{"job", "redrive_deliveries_total"}}}
	const next = "redrive_breaker_next_timestamp_seconds"
	until := b.graph("Until the breaker lets a call through", next, "s", []string{"dependency"}, "clamp_min("+b.all("max", next, "dependency")+" - time(), 0)")
	return build("redrive-workers", "redrive: workers", "All topics of the workers that use redrive.", b.asks, []section{
		b.signals(), b.freshness(), b.flow(), b.inside(), b.waiting(),
		{"Dependencies", []graph{
			b.highest("Paused", "redrive_paused", "dependency").with(
				b.show("pauses", "redrive_pauses_total", "dependency"), b.highest("by hand", "redrive_limit_paused", "dependency")),
			b.highest("Paused through the worker", "redrive_paused_by_hand", "end"),
			b.show("Limit", "redrive_limit", "dependency").with(
				b.show("at most", "redrive_limit_slots", "dependency"), b.show("running", "redrive_limit_running", "dependency")),
			b.show("Failing", "redrive_limit_failing", "dependency").with(b.show("sampled", "redrive_limit_sampled", "dependency")),
			b.show("Time between probes", "redrive_limit_interval_seconds", "dependency"),
			b.show("Retries that wait for a token", "redrive_budget_waiting", "dependency").with(
				b.show("tokens", "redrive_budget_tokens", "dependency"), b.show("at most", "redrive_budget_capacity", "dependency")),
			b.show("Tokens granted", "redrive_budget_granted_total", "dependency").with(
				b.show("given back", "redrive_budget_refunded_total", "dependency"), b.show("refused", "redrive_budget_deferred_total", "dependency"),
				b.show("at most", "redrive_budget_limit", "dependency")),
			b.show("Delay by the budget", "redrive_budget_waits_seconds_total", "dependency"),
		}},
		{"Breakers of HTTP clients", []graph{
			b.highest("State", "redrive_breaker_state", "dependency", "state").with(b.show("calls at once", "redrive_breaker_limit", "dependency")),
			b.show("Failures", "redrive_breaker_window_failures", "dependency").with(b.show("messages", "redrive_breaker_window_messages", "dependency")),
			until,
		}},
		b.trouble(),
	})
}

func topicBoard(t table) dashboard {
	b := board{t, variables{{"job", "redrive_deliveries_total"}, {"topic", "redrive_deliveries_total"}}}
	const age, duration = "redrive_message_age_at_end_seconds", "redrive_handler_duration_seconds"
	median := func(title, name string, by ...string) graph {
		return b.graph(title, name, "s", by, b.quantile(0.5, name, by...))
	}
	return build("redrive-topic", "redrive: one topic", "What happens to the messages of a topic.", b.asks, []section{
		b.signals(), b.freshness(), b.flow(), b.inside(), b.waiting(),
		{"Medians", []graph{
			median("Age at the end", age, "topic"), median("Handlers", duration, "topic", "result"), median("Lateness of retries", "redrive_retry_lateness_seconds", "topic"),
		}},
		b.trouble(),
	})
}

func lettersBoard(atWorkers, atServe table) dashboard {
	b := board{atServe, variables{{"job", "redrive_letters"}, {"broker", "redrive_letters"}}}
	worker := board{table: atWorkers} // of any job: that of redrive serve is another one
	return build("redrive-dead-letters", "redrive: dead letters", "What workers give up, and what redrive serve has of it.", b.asks, []section{
		{"Workers", []graph{
			worker.show("Dead letters", "redrive_dead_letters_total", "topic", "reason"),
			worker.show("Failed", "redrive_dead_letter_errors_total", "topic").with(worker.show("refused", "redrive_dead_letters_refused_total", "topic")),
			worker.show("Dropped", "redrive_discarded_total", "topic", "reason"),
			worker.highest("In dead-letter topics", "redrive_backlog_dead_letters", "topic"),
			worker.show("Oldest in dead-letter topics", "redrive_backlog_dead_letters_oldest_seconds", "topic"),
		}},
		{"Letters", []graph{
			b.show("In the store", "redrive_letters", "broker", "topic", "state"),
			b.show("Oldest that waits", "redrive_letters_oldest_seconds", "broker", "topic"),
			b.show("Size", "redrive_letters_bytes", "broker", "topic"),
			b.show("New kinds of errors", "redrive_letter_groups_new"),
			b.show("Jobs", "redrive_jobs", "state"),
			b.show("A job is paused for", "redrive_jobs_paused_seconds"),
		}},
		{"Collecting", []graph{
			b.show("Collected", "redrive_collected_letters_total", "broker", "result"),
			b.highest("Not collected", "redrive_collect_paused", "broker", "topic"),
			b.show("Lag", "redrive_collect_lag_seconds", "broker"),
			b.show("Receipts", "redrive_receipts_total", "broker", "result"),
			worker.show("Runs of sent-back messages", "redrive_returned_runs_total", "topic", "result"),
			worker.show("Receipts that workers failed to publish", "redrive_receipt_errors_total").with(worker.show("dropped", "redrive_receipts_dropped_total")),
		}},
		{"redrive serve", []graph{
			b.highest("Store answers", "redrive_store_up"),
			b.show("Disk free", "redrive_store_disk_free_bytes").with(b.show("size", "redrive_store_disk_bytes")),
			b.show("Connections", "redrive_http_connections").with(b.show("refused", "redrive_http_connections_refused_total", "reason")),
		}},
	})
}

func serviceBoard(t table) dashboard {
	b := board{t, variables{{"job", "redrive_tasks"}}}
	const attempts = "retry_attempts_total"
	by := []string{"policy"}
	retryRate := b.graph("Retry rate", attempts, "percentunit", by, b.per(attempts, by, `outcome="retry"`)+"\n  / "+b.per(attempts, by))
	retryRate.says = "Share of the attempts after which the task waits for another one."
	return build("redrive-retry-service", "redrive: retry service", "Tasks of redrive service.", b.asks, []section{
		{"Calls", []graph{
			retryRate,
			b.show("p99 since the creation", "retry_task_age_seconds", "policy"),
			b.show("p99 after the due time", "redrive_task_lateness_seconds"),
		}},
		{"Tasks", []graph{
			b.show("Attempts", attempts, "policy", "outcome"),
			b.show("In the store", "redrive_tasks", "policy", "state"),
			b.show("Oldest", "redrive_tasks_oldest_seconds"),
		}},
		{"Service", []graph{
			b.highest("Store answers", "redrive_store_up", "instance"),
			b.show("Connections", "redrive_http_connections"),
			b.show("Connections refused", "redrive_http_connections_refused_total", "reason"),
		}},
	})
}
