package faultproxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Control lets a person steer the proxy with curl. The fields of Match and
// Rule are query parameters: verb, group, resource, namespace, name, user-agent;
// fault, event, object, after, times, code, retry-after, delay.
//
//	POST /cut        reset the matching requests that are under way; all watches without parameters
//	POST /inject     put a rule to work
//	POST /clear      remove all rules; what they stall or hold goes on
//	POST /down, /up  make the server unreachable, reachable
//	GET  /requests   the recorded requests that match
//
// It answers in one line what it did; /cut says how many.
func (p *Proxy) Control() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(w http.ResponseWriter, query url.Values) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r.URL.Query()); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	handle("POST /cut", func(w http.ResponseWriter, query url.Values) error {
		match := matchFrom(query)
		if len(query) == 0 {
			match = Watches
		}
		_, err := fmt.Fprintf(w, "cut %d\n", p.Cut(match))
		return err
	})
	handle("POST /inject", func(w http.ResponseWriter, query url.Values) error {
		rule, err := ruleFrom(query)
		if err != nil {
			return err
		}
		if _, err := p.Inject(rule); err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "injected %s\n", rule.Fault)
		return err
	})
	handle("POST /clear", func(w http.ResponseWriter, _ url.Values) error {
		p.Clear()
		_, err := fmt.Fprintln(w, "cleared")
		return err
	})
	handle("POST /down", func(w http.ResponseWriter, _ url.Values) error {
		p.Down()
		_, err := fmt.Fprintln(w, "down")
		return err
	})
	handle("POST /up", func(w http.ResponseWriter, _ url.Values) error {
		if err := p.Up(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, "up")
		return err
	})
	handle("GET /requests", func(w http.ResponseWriter, query url.Values) error {
		found, forgotten := p.Requests(matchFrom(query))
		if forgotten > 0 {
			if _, err := fmt.Fprintf(w, "(%d older requests are forgotten)\n", forgotten); err != nil {
				return err
			}
		}
		for _, r := range found {
			if _, err := fmt.Fprintln(w, r); err != nil {
				return err
			}
		}
		return nil
	})
	return mux
}

func matchFrom(query url.Values) Match {
	return Match{
		Verb: query.Get("verb"), Group: query.Get("group"), Resource: query.Get("resource"), Namespace: query.Get("namespace"),
		Name: query.Get("name"), UserAgent: query.Get("user-agent"),
	}
}

func ruleFrom(query url.Values) (Rule, error) {
	rule := Rule{Match: matchFrom(query), Event: query.Get("event"), Object: query.Get("object"), Fault: Fault(query.Get("fault"))}
	for name, field := range map[string]*int{"after": &rule.After, "times": &rule.Times, "code": &rule.Code} {
		if s := query.Get(name); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil {
				return Rule{}, fmt.Errorf("%s: %w", name, err)
			}
			*field = n
		}
	}
	for name, field := range map[string]*time.Duration{"retry-after": &rule.RetryAfter, "delay": &rule.Delay} {
		if s := query.Get(name); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil {
				return Rule{}, fmt.Errorf("%s: %w", name, err)
			}
			*field = d
		}
	}
	return rule, nil
}
