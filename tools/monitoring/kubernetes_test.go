package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// TestWorkerManifest decodes the Deployment into the types of Kubernetes.
func TestWorkerManifest(t *testing.T) {
	var d apps.Deployment
	if err := yaml.UnmarshalStrict([]byte(read(t, "monitoring/kubernetes/worker.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	probes := []string{c.StartupProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path}
	if want := []string{"/startupz", "/livez", "/readyz"}; d.APIVersion != "apps/v1" || d.Kind != "Deployment" || !slices.Equal(probes, want) {
		t.Errorf("%s %s with the probes %q, want a Deployment with %q", d.APIVersion, d.Kind, probes, want)
	}
	const drain, closing = 25 + 1, 30 + 10 // docs/how-to/stop-cleanly.md
	if least := c.Lifecycle.PreStop.Sleep.Seconds + drain + closing; *pod.TerminationGracePeriodSeconds < least {
		t.Errorf("the worker has %d s to stop, want at least %d", *pod.TerminationGracePeriodSeconds, least)
	}
	if d.Spec.Selector.MatchLabels["app"] != d.Spec.Template.Labels["app"] {
		t.Error("the Deployment selects other pods than its own")
	}
}

// scaledObject has the fields of KEDA's ScaledObject, v1alpha1, that manifests here may
// use. The types of KEDA itself bring all of its controller along: make keda
// holds the manifests against them.
type scaledObject struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       struct {
		ScaleTargetRef  struct{ Name string } `json:"scaleTargetRef"`
		MinReplicaCount int                   `json:"minReplicaCount"`
		MaxReplicaCount int                   `json:"maxReplicaCount"`
		CooldownPeriod  int                   `json:"cooldownPeriod"`
		Triggers        []trigger             `json:"triggers"`
		Advanced        struct {
			ScalingModifiers struct {
				Formula    string `json:"formula"`
				Target     string `json:"target"`
				MetricType string `json:"metricType"`
			} `json:"scalingModifiers"`
		} `json:"advanced"`
	} `json:"spec"`
}

type trigger struct {
	Type              string                `json:"type"`
	Name              string                `json:"name"`
	Metadata          map[string]string     `json:"metadata"`
	AuthenticationRef struct{ Name string } `json:"authenticationRef"`
}

// settings are those of the scalers of KEDA 2.18 that manifests here may use.
var settings = map[string][]string{
	"aws-sqs-queue": {"queueURL", "awsRegion", "queueLength", "activationQueueLength", "scaleOnInFlight", "scaleOnDelayed"},
	"rabbitmq":      {"protocol", "hostFromEnv", "queueName", "mode", "value", "activationValue", "excludeUnacknowledged", "vhostName"},
	"kafka":         {"bootstrapServers", "consumerGroup", "topic", "lagThreshold", "activationLagThreshold", "limitToPartitionsWithLag", "offsetResetPolicy"},
	"prometheus":    {"serverAddress", "query", "threshold", "activationThreshold"},
}

// TestScalers decodes the manifests strictly, and looks for the four traps.
func TestScalers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "monitoring/keda/*.yaml"))
	if err != nil || len(files) != 3 {
		t.Fatalf("manifests %q, error %v, want three", files, err)
	}
	known, err := readTable(root, workers)
	if err != nil {
		t.Fatal(err)
	}
	avoids := map[string][2]string{"aws-sqs-queue": {"scaleOnInFlight", "false"}, "rabbitmq": {"excludeUnacknowledged", "true"}, "kafka": {"topic", "orders"}}
	seen := map[string]bool{}
	for _, file := range files {
		var o scaledObject
		if err := yaml.UnmarshalStrict([]byte(read(t, "monitoring/keda/"+filepath.Base(file))), &o); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if o.APIVersion != "keda.sh/v1alpha1" || o.Kind != "ScaledObject" || o.Spec.ScaleTargetRef.Name != "orders" || o.Spec.MaxReplicaCount <= o.Spec.MinReplicaCount {
			t.Errorf("%s scales nothing: %+v", file, o)
		}
		formula := o.Spec.Advanced.ScalingModifiers.Formula
		if !strings.HasPrefix(formula, "paused > 0 ? ") {
			t.Errorf("%s: the formula %q adds workers during a pause", file, formula)
		}
		for _, tr := range o.Spec.Triggers {
			if !strings.Contains(formula, tr.Name) {
				t.Errorf("%s: the formula %q leaves out %s", file, formula, tr.Name)
			}
			for key := range tr.Metadata {
				if !slices.Contains(settings[tr.Type], key) {
					t.Errorf("%s: a trigger %s has no setting %s", file, tr.Type, key)
				}
			}
			if avoid, ok := avoids[tr.Type]; ok {
				seen[tr.Type] = true
				if tr.Metadata[avoid[0]] != avoid[1] {
					t.Errorf("%s: %s = %q, want %q", file, avoid[0], tr.Metadata[avoid[0]], avoid[1])
				}
			}
			if query := tr.Metadata["query"]; query != "" {
				checkQuery(t, file, query, known)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("triggers of %v, want one for each broker", seen)
	}
}

func checkQuery(t *testing.T, file, query string, known table) {
	t.Helper()
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", file, err)
		return
	}
	has := map[string][]string{}
	for name, m := range known {
		has[name] = m.labels
	}
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			checkSelector(t, file, s, has)
		}
		return nil
	})
}
