package kafka

import (
	"maps"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/inspect"
)

func TestRules(t *testing.T) {
	good := map[string]string{
		"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1", "max.message.bytes": "1114124",
		"min.insync.replicas": "2", "unclean.leader.election.enable": "false",
	}
	type costs map[role]inspect.Severity // of topics that have a finding
	const refused, noted = inspect.Blocking, inspect.Noted
	for _, tt := range []struct {
		setting, value string
		costs          costs
		want           string // "" if it is another one for each
	}{
		{"", "", nil, ""},
		{"cleanup.policy", "compact", costs{delays: refused, letters: refused}, "delete"},
		{"cleanup.policy", "compact,delete", costs{delays: refused, letters: refused}, "delete"},
		{"cleanup.policy", "", nil, ""}, // not known
		{"retention.bytes", "1000", costs{delays: refused}, "-1"},
		{"retention.ms", "4499999", costs{entry: noted, delays: refused, letters: noted}, ""},
		{"retention.ms", "4500000", costs{letters: noted}, "-1"},
		{"retention.ms", "1209600000", nil, ""}, // two weeks
		{"max.message.bytes", "1048587", costs{delays: refused, letters: refused}, "1114124"},
		{"max.message.bytes", "1048588", costs{delays: noted, letters: noted}, "1114124"},
		{"max.message.bytes", "1114123", costs{delays: noted, letters: noted}, "1114124"},
		{"replication factor", "2", costs{delays: noted, letters: noted}, "3"},
		{"replication factor", "1", costs{entry: noted, delays: noted, letters: noted}, "3"},
		{"min.insync.replicas", "1", costs{entry: noted, delays: noted, letters: noted}, "2"},
		{"unclean.leader.election.enable", "true", costs{entry: noted, delays: noted, letters: noted}, "false"},
	} {
		for role, name := range map[role]string{entry: "orders", delays: "redrive.delay.v1.g.15m", letters: "orders-dead", receipts: "receipts"} {
			q := quality{name: name, role: role, needed: 15 * time.Minute, settings: maps.Clone(good), like: baseline{largest: 1_048_588, replicas: 3, inSync: 2}}
			q.state.replication, q.state.brokers = 3, 3
			if tt.setting == "replication factor" {
				q.state.replication = intOf(tt.value)
			} else if tt.setting != "" {
				q.settings[tt.setting] = tt.value
			}
			found := q.judge()
			severity, ok := tt.costs[role]
			if !ok {
				if len(found) > 0 {
					t.Errorf("%s=%s of %s: %v, want nothing", tt.setting, tt.value, name, found)
				}
				continue
			}
			if len(found) != 1 || found[0].Severity != severity || found[0].Setting != tt.setting || found[0].Value != tt.value || tt.want != "" && found[0].Want != tt.want || found[0].Topic != name {
				t.Errorf("%s=%s of %s: %v, want one that is %v, and wants %s", tt.setting, tt.value, name, found, severity, tt.want)
			} else if fix := "kafka-configs.sh --alter --entity-type topics --entity-name " + name + " --add-config " + tt.setting + "=" + found[0].Want; found[0].Fix != fix && tt.setting != "replication factor" {
				t.Errorf("the fix is %q, want %q", found[0].Fix, fix)
			}
		}
	}
}

// A topic that only compacts deletes no message by its age, at any retention.ms.
func TestRetentionOfACompactedTopic(t *testing.T) {
	for policy, want := range map[string]int{"compact": 0, "compact,delete": 1, "delete": 1} {
		q := quality{name: "orders", role: entry, needed: 15 * time.Minute, settings: map[string]string{"cleanup.policy": policy, "retention.ms": "60000"}}
		if found := q.judge(); len(found) != want {
			t.Errorf("cleanup.policy=%s: %v, want %d findings", policy, found, want)
		}
	}
}

// TestRulesOfOneBroker finds nothing on a cluster where nothing else is possible.
func TestRulesOfOneBroker(t *testing.T) {
	for _, role := range []role{entry, delays, letters, receipts} {
		q := quality{name: "topic", role: role, like: baseline{replicas: 1, inSync: 1}, settings: map[string]string{"min.insync.replicas": "1"}}
		q.state.replication, q.state.brokers = 1, 1
		if found := q.judge(); len(found) > 0 {
			t.Errorf("%v", found)
		}
	}
}

func TestRights(t *testing.T) {
	const read, write, configs = 1 << kmsg.ACLOperationRead, 1 << kmsg.ACLOperationWrite, 1 << kmsg.ACLOperationDescribeConfigs
	for _, tt := range []struct {
		role     role
		rights   int32
		readOnly bool
		severity inspect.Severity // 0 for no finding
		grants   string
	}{
		{delays, unknownRights, false, 0, ""},
		{delays, read | write | configs, false, 0, ""},
		{delays, read | configs, false, inspect.Blocking, "--operation Write --topic"},
		{delays, 0, false, inspect.Blocking, "--operation Read --operation Write --operation DescribeConfigs --topic"},
		{delays, read | write, false, inspect.Unverified, "--operation DescribeConfigs --topic"},
		{entry, read, false, inspect.Unverified, "--operation DescribeConfigs --topic"},
		{entry, read, true, 0, ""},
		{entry, configs, true, inspect.Blocking, "--operation Read --topic"},
		{letters, write | configs, false, 0, ""},
		{letters, read | configs, false, inspect.Blocking, "--operation Write --topic"},
		{receipts, write, false, 0, ""},
	} {
		found := Options{SASL: plain.Mechanism{Username: "it's me"}}.rightsOn(quality{name: "topic", role: tt.role, state: topicState{rights: tt.rights}}, tt.readOnly)
		if tt.severity == 0 {
			if len(found) > 0 {
				t.Errorf("%+v: %v", tt, found)
			}
			continue
		}
		if want := `kafka-acls.sh --add --allow-principal 'User:it'\''s me' ` + tt.grants + " topic"; len(found) != 1 || found[0].Severity != tt.severity || found[0].Fix != want {
			t.Errorf("%+v: %v, want %v, and %q", tt, found, tt.severity, want)
		}
	}
}
