// Package keda holds the manifests for KEDA against the types of KEDA itself. It is a
// module of its own, as these bring some five hundred packages along.
package keda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"sigs.k8s.io/yaml"
)

func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../../monitoring/keda/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("manifests %q, error %v, want three", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var o v1alpha1.ScaledObject
		if err := yaml.UnmarshalStrict(text, &o); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if _, err := v1alpha1.ValidateAndCompileScalingModifiers(&o); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if o.GroupVersionKind() != v1alpha1.SchemeGroupVersion.WithKind("ScaledObject") {
			t.Errorf("%s is a %s", file, o.GroupVersionKind())
		}
		for _, trigger := range o.Spec.Triggers {
			if trigger.AuthenticationRef != nil && trigger.AuthenticationRef.Name == "" {
				t.Errorf("%s: the trigger %s names no authentication", file, trigger.Name)
			}
		}
	}
}
