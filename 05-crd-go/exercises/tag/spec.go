// Package tag holds the spec of a Sauce.
package tag

// SauceSpec is what the author of a Sauce wants.
type SauceSpec struct {
	Flavor      string `json:"flavor"`
	MilliLiters int32  `json:"milliLiters"`
	SugarFree   bool   `json:"sugarFree,omitempty"`
}
