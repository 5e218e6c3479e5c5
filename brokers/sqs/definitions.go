package sqs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
)

// Topology returns the commands that create the queues that subs need, as Open would
// with Options.Create: a script for a shell, with the AWS CLI. A RedrivePolicy needs
// the ARN of its target, so the script asks for it. A queue that exists with other
// attributes stays as it is, and the CLI says so. Queues that are named by a URL are
// comments, since they may be of another account. Topology itself connects to nothing.
func (b *Broker) Topology(subs ...brokers.Subscription) (string, error) {
	var scripts []string
	for _, sub := range subs {
		err := check(sub, termsOf(sub, b.options))
		if refused := findingsOf(existing, mixed(sub)...); len(refused) > 0 {
			err = errors.Join(err, &brokers.TopologyError{Findings: refused})
		}
		if err != nil {
			return "", fmt.Errorf("sqs: topology of %q: %w", printable(sub.Topics...), err)
		}
		topics, kept := stages(sub)
		for _, topic := range slices.Concat(kept, topics) {
			if lines := b.scriptOf(sub, topic); !slices.Contains(scripts, lines) {
				scripts = append(scripts, lines)
			}
		}
	}
	return strings.Join(scripts, ""), nil
}

// scriptOf are the lines that create a queue, after the one for its dead letters.
func (b *Broker) scriptOf(sub brokers.Subscription, topic string) (lines string) {
	if !creatable(topic) {
		return fmt.Sprintf("# %s: create it in its own account\n", topic)
	}
	target, dead := "", sub.DeadLetters[topic]
	if dead != "" && slices.Contains(sub.Topics, topic) {
		target = "$target"
		lines = fmt.Sprintf("target=$(%s --queue-url %s --attribute-names QueueArn --query Attributes.QueueArn --output text)\n",
			b.cli("get-queue-attributes"), b.urlOf(dead))
	}
	attributes := strings.Replace(shell(jsonOf(wanted(sub, topic, target))), "$target", `'"$target"'`, 1)
	return lines + fmt.Sprintf("%s --queue-name %s --attributes %s\n", b.cli("create-queue"), shell(topic), attributes)
}

// urlOf is the URL of a queue, in a shell.
func (b *Broker) urlOf(topic string) string {
	if !creatable(topic) {
		return shell(topic)
	}
	return fmt.Sprintf(`"$(%s --queue-name %s --query QueueUrl --output text)"`, b.cli("get-queue-url"), shell(topic))
}

// cli begins a command for the account and region of b.
func (b *Broker) cli(command string) string {
	text := "aws sqs " + command + " --region " + shell(b.options.Config.Region)
	if endpoint := cmp.Or(b.options.Endpoint, aws.ToString(b.options.Config.BaseEndpoint)); endpoint != "" {
		text += " --endpoint-url " + shell(endpoint)
	}
	return text
}
