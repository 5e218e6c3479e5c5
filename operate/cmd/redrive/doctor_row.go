package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// failed is the severity of what could not be looked at.
const failed = "error"

// severities begin with the worst one.
var severities = []string{failed, brokers.Refused.String(), brokers.Unverified.String(), brokers.Noted.String()}

// findingRow is what redrive doctor finds.
type findingRow struct {
	// Severity is `error`, `refused`, `unverified` or `noted`.
	Severity string `json:"severity"`

	// Broker is the name of the broker.
	Broker string `json:"broker"`

	// Topic is the queue, topic, exchange, node, group or host that it is about. Of an
	// error it is the topics whose needs were looked at; empty for the whole broker.
	Topic string `json:"topic"`

	// Missing says that it does not exist.
	Missing bool `json:"missing"`

	// Setting is the broker's word for the setting; empty if it is not about one.
	Setting string `json:"setting"`

	// Value is what the setting is; empty if it is not set, or not known.
	Value string `json:"value"`

	// Want is what the setting should be.
	Want string `json:"want"`

	// Why is what it costs.
	Why string `json:"why"`

	// Fix is the command that mends it, or what to do.
	Fix string `json:"fix"`

	// See is the address of a page about it.
	See string `json:"see"`
}

func findingOf(broker string, f brokers.Finding) findingRow {
	return findingRow{
		Severity: f.Severity.String(), Broker: broker, Topic: f.Topic, Missing: f.Missing, Setting: f.Setting, Value: f.Value, Want: f.Want,
		Why: connect.InKeys(f.Why), Fix: connect.InKeys(f.Fix), See: f.See,
	}
}

// what is the row in a few words.
func (r findingRow) what() string {
	switch {
	case r.Setting != "":
		return r.Setting + ": " + cmp.Or(r.Value, "not set")
	case r.Missing:
		return "is missing"
	}
	return r.Why
}

func (r findingRow) style() term.Style {
	switch r.Severity {
	case failed, brokers.Refused.String():
		return term.Red
	case brokers.Unverified.String():
		return term.Yellow
	}
	return ""
}

var findingColumns = []column[findingRow]{
	{head: "severity", whole: true, text: func(r findingRow) string { return r.Severity }, style: findingRow.style},
	{head: "broker", text: func(r findingRow) string { return r.Broker }},
	{head: "topic", text: func(r findingRow) string { return r.Topic }},
	{head: "what", text: findingRow.what},
	{head: "want", wide: true, text: func(r findingRow) string { return r.Want }},
	{head: "why", wide: true, text: func(r findingRow) string { return r.Why }},
	{head: "fix", wide: true, text: func(r findingRow) string { return r.Fix }},
}

// tools are what commands in a fix begin with.
var tools = []string{"rabbitmqctl", "rabbitmqadmin", "rabbitmq-queues", "kafka-topics.sh", "kafka-configs.sh", "kafka-acls.sh", "kafka-consumer-groups.sh", "aws"}

// details are what the table has no room for.
func details(rows []findingRow) *term.Sheet {
	s := &term.Sheet{}
	for _, r := range rows {
		about := r.Broker
		if r.Topic != "" {
			about = r.Topic + " on " + r.Broker
		}
		s.Title(r.Severity + ": " + about)
		if r.Setting != "" {
			s.Pair("setting", r.Setting)
			s.Pair("value", cmp.Or(r.Value, "not set"))
			s.Pair("wanted", r.Want)
		}
		s.Pair("why", r.Why)
		s.Pair("see", r.See)
		if tool, _, _ := strings.Cut(r.Fix, " "); slices.Contains(tools, tool) {
			s.Command(r.Fix)
		} else {
			s.Pair("fix", r.Fix)
		}
	}
	return s
}
