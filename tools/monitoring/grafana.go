package main

// The parts of a Grafana dashboard that ours need, of schema version 39 (Grafana 10.4
// and newer).
type (
	dashboard struct {
		Title         string     `json:"title"`
		UID           string     `json:"uid"`
		Description   string     `json:"description"`
		Tags          []string   `json:"tags"`
		Editable      bool       `json:"editable"`
		SchemaVersion int        `json:"schemaVersion"`
		Timezone      string     `json:"timezone"`
		Refresh       string     `json:"refresh"`
		Time          timeRange  `json:"time"`
		Links         []link     `json:"links"`
		Templating    templating `json:"templating"`
		Panels        []panel    `json:"panels"`
	}
	timeRange struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	link struct {
		Title       string   `json:"title"`
		Type        string   `json:"type"`
		Tags        []string `json:"tags"`
		AsDropdown  bool     `json:"asDropdown"`
		IncludeVars bool     `json:"includeVars"`
		KeepTime    bool     `json:"keepTime"`
	}
	templating struct {
		List []variable `json:"list"`
	}
	variable struct {
		Name       string      `json:"name"`
		Label      string      `json:"label"`
		Type       string      `json:"type"`
		Query      string      `json:"query"`
		Datasource *datasource `json:"datasource,omitempty"`
		Refresh    int         `json:"refresh,omitempty"`
		Sort       int         `json:"sort,omitempty"`
		Multi      bool        `json:"multi"`
		IncludeAll bool        `json:"includeAll"`
		Current    *current    `json:"current,omitempty"`
	}
	current struct {
		Text  string `json:"text"`
		Value string `json:"value"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID          int          `json:"id"`
		Type        string       `json:"type"`
		Title       string       `json:"title"`
		Description string       `json:"description,omitempty"`
		GridPos     gridPos      `json:"gridPos"`
		Datasource  *datasource  `json:"datasource,omitempty"`
		Targets     []target     `json:"targets,omitempty"`
		FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
		Options     *options     `json:"options,omitempty"`
	}
	gridPos struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	target struct {
		RefID        string      `json:"refId"`
		Datasource   *datasource `json:"datasource"`
		Expr         string      `json:"expr"`
		LegendFormat string      `json:"legendFormat"`
	}
	fieldConfig struct {
		Defaults  defaults `json:"defaults"`
		Overrides []string `json:"overrides"`
	}
	defaults struct {
		Unit string `json:"unit"`
		Min  *int   `json:"min,omitempty"`
	}
	options struct {
		Legend  legend  `json:"legend"`
		Tooltip tooltip `json:"tooltip"`
	}
	legend struct {
		DisplayMode string `json:"displayMode"`
		Placement   string `json:"placement"`
		ShowLegend  bool   `json:"showLegend"`
	}
	tooltip struct {
		Mode string `json:"mode"`
		Sort string `json:"sort"`
	}
)

// section is a row of a dashboard, and what is below it.
type section struct {
	title  string
	graphs []graph
}

// graph is a panel before it has a place.
type graph struct {
	title, says, unit string
	queries           []query
}

type query struct{ expr, legend string }

// variables is what a dashboard asks its user for besides the data source: labels,
// with the metric whose values are offered.
type variables []struct{ label, metric string }

const (
	columns = 24
	height  = 8
)

// build gives each panel its place and number.
func build(uid, title, says string, asks variables, sections []section) dashboard {
	source := &datasource{"prometheus", "${datasource}"}
	d := dashboard{
		Title: title, UID: uid, Description: says, Tags: []string{"redrive"}, SchemaVersion: 39, Timezone: "browser", Refresh: "30s",
		Time:  timeRange{"now-3h", "now"},
		Links: []link{{Title: "redrive", Type: "dashboards", Tags: []string{"redrive"}, AsDropdown: true, IncludeVars: true, KeepTime: true}},
		Templating: templating{[]variable{
			{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Current: &current{"Prometheus", "prometheus"}},
		}},
	}
	for _, ask := range asks {
		d.Templating.List = append(d.Templating.List, variable{
			Name: ask.label, Label: ask.label, Type: "query", Query: "label_values(" + ask.metric + ", " + ask.label + ")", Datasource: source,
			Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, Current: &current{"All", "$__all"},
		})
	}
	y := 0
	place := func(p panel, w, x, h int) {
		p.ID, p.GridPos = len(d.Panels)+1, gridPos{H: h, W: w, X: x, Y: y}
		d.Panels = append(d.Panels, p)
	}
	for _, s := range sections {
		place(panel{Type: "row", Title: s.title}, columns, 0, 1)
		y++
		for len(s.graphs) > 0 {
			n := min(len(s.graphs), 3)
			if len(s.graphs) == 4 {
				n = 2
			}
			for i, g := range s.graphs[:n] {
				place(g.panel(source), columns/n, i*columns/n, height)
			}
			s.graphs, y = s.graphs[n:], y+height
		}
	}
	return d
}

func (g graph) panel(source *datasource) panel {
	zero := 0
	p := panel{
		Type: "timeseries", Title: g.title, Description: g.says, Datasource: source,
		FieldConfig: &fieldConfig{Defaults: defaults{Unit: g.unit, Min: &zero}, Overrides: []string{}},
		Options:     &options{Legend: legend{"list", "bottom", true}, Tooltip: tooltip{"multi", "desc"}},
	}
	for i, q := range g.queries {
		p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Datasource: source, Expr: q.expr, LegendFormat: q.legend})
	}
	return p
}
