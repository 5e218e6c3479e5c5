package service

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/integration/goldentest"
)

// TestReference compares the generated parts of the reference of the API with its
// description.
func TestReference(t *testing.T) {
	d := readDescription(t)
	goldentest.Parts(t, "../../docs/reference/retry-service.md", map[string]string{
		"operations": d.operations(), "fields": d.tables(), "problems": problemList(), "causes": causeList(),
	})
}

// object is what stands at a pointer, which must be an object.
func (d *description) object(pointer ...string) map[string]any {
	value, _ := d.at(pointer...)
	object, _ := value.(map[string]any)
	return object
}

// schemaName is the name of the schema that a reference leads to.
func schemaName(schema any) string {
	ref, _ := schema.(map[string]any)["$ref"].(string)
	return ref[strings.LastIndex(ref, "/")+1:]
}

func causeList() string {
	var b strings.Builder
	for _, cause := range causes() {
		if cause != deferred {
			fmt.Fprintf(&b, "- `%s`\n", cause)
		}
	}
	return b.String()
}

func link(schema string) string { return fmt.Sprintf("[%s](#%s)", schema, strings.ToLower(schema)) }

func (d *description) operations() string {
	var b strings.Builder
	for _, r := range routes() {
		at := []string{"paths", r.path, strings.ToLower(r.method)}
		op := d.object(at...)
		fmt.Fprintf(&b, "### %s %s\n\n%s.", r.method, r.path, op["summary"])
		if more, ok := op["description"].(string); ok {
			b.WriteString(" " + more)
		}
		if body := d.object(append(at, "requestBody", "content", "application/json")...); body != nil {
			fmt.Fprintf(&b, " Takes %s.", link(schemaName(body["schema"])))
		}
		b.WriteString("\n\n| Parameter | In | Meaning |\n|---|---|---|\n")
		for _, p := range append(parameters(d.object("paths", r.path)), parameters(op)...) {
			if name := schemaName(p); name != "" {
				p = d.object("components", "parameters", name)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s%s |\n", p["name"], p["in"], p["description"], limits(p["schema"].(map[string]any)))
		}
		b.WriteString("\n| Status | Answer |\n|---|---|\n")
		for _, status := range slices.Sorted(maps.Keys(d.object(append(at, "responses")...))) {
			answer := d.object(append(at, "responses", status)...)
			for _, mediaType := range slices.Sorted(maps.Keys(answer["content"].(map[string]any))) {
				schema := answer["content"].(map[string]any)[mediaType].(map[string]any)["schema"]
				meaning := fmt.Sprintf("%s %s", answer["description"], link(schemaName(schema)))
				if status[0] != '2' {
					meaning = problemsOf(d.problems(at), status)
				}
				fmt.Fprintf(&b, "| %s | %s |\n", status, meaning)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func parameters(of map[string]any) (list []map[string]any) {
	all, _ := of["parameters"].([]any)
	for _, p := range all {
		list = append(list, p.(map[string]any))
	}
	return list
}

// problemsOf are those of an operation with a status.
func problemsOf(op []string, status string) string {
	var names []string
	for _, k := range kinds {
		if fmt.Sprint(k.status) == status && slices.Contains(op, k.name) {
			names = append(names, fmt.Sprintf("[%s](#%s)", k.name, k.name))
		}
	}
	return strings.Join(names, ", ")
}

// limits says what a value may be.
func limits(schema map[string]any) string {
	var parts []string
	for _, limit := range []struct{ key, form string }{
		{"enum", "One of %v."}, {"minimum", "From %v."}, {"maximum", "To %v."}, {"maxLength", "At most %v characters."}, {"maxProperties", "At most %v."}, {"maxItems", "At most %v."}, {"default", "Default: `%v`."},
	} {
		value, ok := schema[limit.key]
		if list, isList := value.([]any); isList {
			value = strings.Join(strings.Fields(strings.Trim(fmt.Sprint(list), "[]")), ", ")
		}
		if ok {
			parts = append(parts, fmt.Sprintf(limit.form, value))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " " + strings.ReplaceAll(strings.Join(parts, " "), ". To", " to")
}

// tables are the fields of the schemas, in the order of the types.
func (d *description) tables() string {
	var b strings.Builder
	for _, s := range []struct {
		name   string
		fields []string
	}{
		{"NewTask", namesOf[taskRequest]()}, {"RetryTask", namesOf[taskDoc]()}, {"Attempts", namesOf[attemptsDoc]()}, {"AttemptLog", namesOf[attemptDoc]()},
		{"NewPolicy", policyNames()}, {"RetryPolicy", namesOf[Policy]()}, {"Problem", namesOf[problemDoc]()},
	} {
		schema := d.object("components", "schemas", s.name)
		required, _ := schema["required"].([]any)
		fmt.Fprintf(&b, "### %s\n\n%s\n\n| Field | Type | Meaning |\n|---|---|---|\n", s.name, schema["description"])
		for _, name := range s.fields {
			raw := schema["properties"].(map[string]any)[name]
			field := d.object("components", "schemas", s.name, "properties", name)
			kind := fmt.Sprint(field["type"])
			if items, ok := field["items"].(map[string]any); ok && kind == "array" {
				if kind = "array of " + fmt.Sprint(items["type"]); items["type"] == nil {
					kind = "array of " + link(schemaName(items))
				}
			}
			if !slices.Contains(required, any(name)) {
				kind += ", optional"
			}
			if strings.HasSuffix(schemaName(raw), name) && s.name == "RetryPolicy" {
				field = map[string]any{"description": field["description"]} // limits are those of NewPolicy
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s%s |\n", name, kind, field["description"], limits(field))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func problemList() string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "### %s\n\nStatus %d. %s. %s\n\n", k.name, k.status, k.title, k.meaning)
	}
	return b.String()
}
