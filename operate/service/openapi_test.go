package service

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const descriptionFile = "openapi.json"

// description holds what the handler does against what the document says.
type description struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	seen     map[string]bool // pointers to operations, answers and fields
}

func readDescription(t *testing.T) *description {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
	must(t, err)
	d := &description{doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), seen: map[string]bool{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	must(t, d.compiler.AddResource(descriptionFile, doc))
	return d
}

// at is what stands at a JSON pointer, and where that is once references are
// followed; nil if there is nothing.
func (d *description) at(pointer ...string) (value any, end []string) {
	value = d.doc
	for _, name := range pointer {
		object, _ := value.(map[string]any)
		value = object[name]
		end = append(end, name)
		if object, ok := value.(map[string]any); ok && object["$ref"] != nil {
			value, end = d.at(strings.Split(strings.TrimPrefix(object["$ref"].(string), "#/"), "/")...)
		}
	}
	return value, end
}

// validate holds a JSON text against the schema at a pointer.
func (d *description) validate(t *testing.T, text string, pointer ...string) {
	t.Helper()
	value, end := d.at(pointer...)
	if value == nil {
		t.Errorf("%s has no schema at %q", descriptionFile, pointer)
		return
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	fragment := "#"
	for _, name := range end {
		fragment += "/" + escape.Replace(name)
	}
	schema, err := d.compiler.Compile(descriptionFile + fragment)
	must(t, err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = schema.Validate(doc)
	}
	if err != nil {
		t.Errorf("this is not what %s says: %v\n%.1000s", descriptionFile, err, text)
	}
	d.fields(doc, end...)
}

// fields notes which fields of a schema a value has.
func (d *description) fields(value any, pointer ...string) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			_, end := d.at(append(slices.Clone(pointer), "properties", name)...)
			d.seen[strings.Join(append(slices.Clone(pointer), name), " ")] = true
			d.fields(inner, end...)
		}
	case []any:
		for _, inner := range value {
			_, end := d.at(append(slices.Clone(pointer), "items")...)
			d.fields(inner, end...)
		}
	}
}

// pathOf is the path of the description that a request is for; empty if none is.
func (d *description) pathOf(r *http.Request) string {
	paths, _ := d.at("paths")
	for path := range paths.(map[string]any) {
		want, got := strings.Split(path, "/"), strings.Split(r.URL.Path, "/")
		if slices.EqualFunc(want, got, func(want, got string) bool { return want == got || strings.HasPrefix(want, "{") && got != "" }) {
			return path
		}
	}
	return ""
}

// check holds an answer against the description, and a request that was taken, too.
func (d *description) check(t *testing.T, r *http.Request, body string, w *httptest.ResponseRecorder) {
	t.Helper()
	path, method := d.pathOf(r), strings.ToLower(r.Method)
	mediaType := w.Header().Get("Content-Type")
	op := []string{"paths", path, method}
	if known, _ := d.at(op...); known == nil {
		if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s %s is not in %s, and is answered with %d", r.Method, r.URL, descriptionFile, w.Code)
		}
		d.validate(t, w.Body.String(), "components", "responses", "problem", "content", mediaType, "schema")
		return
	}
	answer := append(op, "responses", strconv.Itoa(w.Code))
	d.seen[strings.Join(answer, " ")] = true
	if known, _ := d.at(answer...); known == nil {
		t.Errorf("%s has no answer %d of %s %s", descriptionFile, w.Code, r.Method, path)
		return
	}
	d.validate(t, w.Body.String(), append(slices.Clone(answer), "content", mediaType, "schema")...)
	headers, _ := d.at(append(slices.Clone(answer), "headers")...)
	documented, _ := headers.(map[string]any)
	for name := range documented {
		if w.Header().Get(name) == "" {
			t.Errorf("%s %s: the header %s is missing", r.Method, path, name)
		}
	}
	if w.Header().Get("Location") != "" && documented["Location"] == nil {
		t.Errorf("%s %s: the header Location is not documented", r.Method, path)
	}
	if w.Code >= 400 {
		d.problem(t, w, op)
	}
	if taken, _ := d.at(append(slices.Clone(op), "requestBody")...); w.Code < 300 && taken != nil {
		d.validate(t, body, append(slices.Clone(op), "requestBody", "content", "application/json", "schema")...)
	}
}

// problem demands of a problem that its operation has it.
func (d *description) problem(t *testing.T, w *httptest.ResponseRecorder, op []string) {
	t.Helper()
	var doc problemDoc
	must(t, json.Unmarshal(w.Body.Bytes(), &doc))
	name := strings.TrimPrefix(doc.Type, problems)
	d.seen[strings.Join(append(slices.Clone(op), name), " ")] = true
	if !slices.Contains(d.problems(op), name) {
		t.Errorf("%s has no problem %s of %q", descriptionFile, name, op)
	}
}

// problems are the names of those that an operation has.
func (d *description) problems(op []string) (names []string) {
	list, _ := d.at(append(slices.Clone(op), "x-problems")...)
	all, _ := list.([]any)
	for _, name := range all {
		names = append(names, name.(string))
	}
	return names
}

// complete demands that everything in the description was seen.
func (d *description) complete(t *testing.T) {
	t.Helper()
	var operations []string
	paths, _ := d.at("paths")
	for path, item := range paths.(map[string]any) {
		for method := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			operations = append(operations, strings.ToUpper(method)+" "+path)
			for _, name := range d.problems([]string{"paths", path, method}) {
				if !d.seen[strings.Join([]string{"paths", path, method, name}, " ")] {
					t.Errorf("no request came to %s of %s %s", name, method, path)
				}
			}
			answers, _ := d.at("paths", path, method, "responses")
			for status := range answers.(map[string]any) {
				if !d.seen[strings.Join([]string{"paths", path, method, "responses", status}, " ")] {
					t.Errorf("no request came to %s of %s %s", status, method, path)
				}
			}
		}
	}
	var served []string
	for _, op := range routes() {
		served = append(served, op.method+" "+op.path)
	}
	slices.Sort(operations)
	slices.Sort(served)
	if !slices.Equal(operations, served) {
		t.Errorf("%s has the operations %q, the handler %q", descriptionFile, operations, served)
	}
	schemas, _ := d.at("components", "schemas")
	for name, schema := range schemas.(map[string]any) {
		properties, _ := schema.(map[string]any)["properties"].(map[string]any)
		for field := range properties {
			if !d.seen["components schemas "+name+" "+field] {
				t.Errorf("the field %s of %s was in no request and no answer", field, name)
			}
		}
	}
}

// TestServed serves the description as it is.
func TestServed(t *testing.T) {
	w := httptest.NewRecorder()
	newOffice(t, Token{"shop", "a token"}).handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" || !bytes.Equal(w.Body.Bytes(), openAPI) {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
}
