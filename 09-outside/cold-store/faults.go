package main

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"time"
)

// A Duration is written as Go writes it: "1.5s".
type Duration time.Duration

func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err == nil && parsed < 0 {
		err = fmt.Errorf("%s is less than nothing", parsed)
	}
	*d = Duration(parsed)
	return err
}

// A Fault is something that goes wrong with some calls.
type Fault struct {
	Method  string `json:"method,omitempty"`  // any if empty
	Changes bool   `json:"changes,omitempty"` // any but GET
	Path    string `json:"path,omitempty"`    // a pattern as of path.Match, such as /v1/rooms/*/size; any if empty
	Skip    int    `json:"skip,omitempty"`    // how many calls pass before it strikes
	Times   int    `json:"times,omitempty"`   // how often it strikes; always if negative, once if 0

	// Do is what goes wrong:
	//   answer   a refusal with Code
	//   close    the connection ends without an answer
	//   silent   there is never an answer
	//   slow     the call takes Delay longer
	Do         string   `json:"do"`
	After      bool     `json:"after,omitempty"` // of all but slow: after the call was carried out
	Code       int      `json:"code,omitempty"`
	RetryAfter int      `json:"retryAfter,omitempty"` // seconds
	Delay      Duration `json:"delay,omitempty"`

	Struck int `json:"struck"` // how often it has struck
	seen   int
}

func (f *Fault) check() *Refusal {
	invalid := func(format string, args ...any) *Refusal {
		return refuse(http.StatusUnprocessableEntity, "Invalid", format, args...)
	}
	if _, err := path.Match(f.Path, ""); err != nil {
		return invalid("path %s: %v", f.Path, err)
	}
	switch {
	case !slices.Contains([]string{"answer", "close", "silent", "slow"}, f.Do):
		return invalid("do is %q, and has to be answer, close, silent or slow", f.Do)
	case f.Do == "answer" && (f.Code < 400 || f.Code > 599):
		return invalid("code is %d, and has to be from 400 to 599", f.Code)
	case f.Do == "slow" && f.Delay == 0:
		return invalid("slow needs a delay")
	case f.After && f.Do == "slow":
		return invalid("after is not for slow")
	}
	return nil
}

// refusal is what an answer says.
func (f *Fault) refusal() *Refusal {
	return refuse(f.Code, "Fault", "the store answers %d for now", f.Code)
}

// strikes counts a call, and reports whether the fault strikes it.
func (f *Fault) strikes(r *http.Request) bool {
	if f.Method != "" && f.Method != r.Method || f.Changes && r.Method == http.MethodGet {
		return false
	}
	if matches, _ := path.Match(f.Path, r.URL.Path); f.Path != "" && !matches {
		return false
	}
	f.seen++
	if f.seen <= f.Skip || f.Times >= 0 && f.Struck >= max(f.Times, 1) {
		return false
	}
	f.Struck++
	return true
}
