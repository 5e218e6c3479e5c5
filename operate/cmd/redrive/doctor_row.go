package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

// failed is the severity of what could not be looked at.
const failed = "error"

// severities begin with the worst one.
var severities = []string{failed, inspect.Blocking.String(), inspect.Unverified.String(), inspect.Noted.String()}

// findingRow is what redrive doctor finds.
type findingRow struct {
	// Severity is `error`, `blocking`, `unverified` or `noted`.
	Severity string `json:"severity"`

	// Broker is the name of the broker, or of the budget.
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

// rowsOf are the findings about a broker, or a budget.
func rowsOf(name string, broker *config.Broker, found []inspect.Finding) (rows []findingRow) {
	for _, f := range found {
		rows = append(rows, findingRow{
			Severity: f.Severity.String(), Broker: name, Topic: f.Topic, Missing: f.Missing, Setting: f.Setting, Value: f.Value, Want: f.Want,
			Why: connect.InKeys(f.Why), Fix: aimed(broker, connect.InKeys(f.Fix)), See: f.See,
		})
	}
	return rows
}

// aimed is a command with what it takes to reach the broker, but for logins.
func aimed(broker *config.Broker, command string) string {
	tool, rest, _ := strings.Cut(command, " ")
	if broker == nil || !slices.Contains(tools, tool) {
		return command
	}
	for _, flag := range []struct{ name, value string }{
		{"--bootstrap-server", strings.Join(broker.Addresses, ",")}, {"--region", broker.Region}, {"--profile", broker.Profile}, {"--endpoint-url", broker.Endpoint},
	} {
		if flag.value != "" {
			tool += " " + flag.name + " " + quoted(flag.value)
		}
	}
	return tool + " " + rest
}

// failure is an error while something was looked at.
func failure(broker, topic string, err error) findingRow {
	return findingRow{Severity: failed, Broker: broker, Topic: topic, Why: connect.InKeys(err.Error()), See: checking}
}

// repeats reports whether a row says what another does, of what several groups share.
// Values that were read one after the other may differ, such as clocks and ages.
func (r findingRow) repeats(other findingRow) bool {
	r.Value, other.Value = "", ""
	return r == other
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

func (r findingRow) severityCell() term.Cell {
	style := map[string]term.Style{
		failed: term.Red, inspect.Blocking.String(): term.Red, inspect.Unverified.String(): term.Yellow,
	}
	return term.Cell{Text: r.Severity, Style: style[r.Severity], Whole: true}
}

var findingTable = table[findingRow]{"severity broker topic what", func(r findingRow) []any {
	return []any{r.severityCell(), r.Broker, r.Topic, r.what()}
}}

// tools are what commands in a fix begin with.
var tools = []string{"rabbitmqctl", "rabbitmqadmin", "rabbitmq-queues", "kafka-topics.sh", "kafka-configs.sh", "kafka-acls.sh", "kafka-consumer-groups.sh", "aws", "redis-cli"}

// details are what the table has no room for. Rows that differ in their topics alone
// are one.
func details(rows []findingRow) *term.Sheet {
	s := &term.Sheet{}
	topics := map[findingRow][]string{}
	var kinds []findingRow
	for _, r := range rows {
		topic := r.Topic
		r.Topic = ""
		if topics[r] == nil {
			kinds = append(kinds, r)
		}
		topics[r] = append(topics[r], topic)
	}
	for _, r := range kinds {
		r.describe(s, strings.Join(topics[r], ", "))
	}
	return s
}

func (r findingRow) describe(s *term.Sheet, topics string) {
	title := r.Severity + ": " + r.Broker
	if topics != "" {
		title += ": " + topics
	}
	s.Title(title)
	if r.Setting != "" {
		s.Pair("setting", r.Setting)
		s.Pair("value", cmp.Or(r.Value, "not set"))
		s.Pair("wanted", r.Want)
	}
	s.Pair("why", r.Why)
	if tool, _, _ := strings.Cut(r.Fix, " "); slices.Contains(tools, tool) {
		s.Command(r.Fix)
	} else {
		s.Pair("fix", r.Fix)
	}
	if r.See != "" {
		s.Command(r.See)
	}
}
