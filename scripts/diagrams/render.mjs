// Reads a mermaid diagram from standard input and prints it as SVG, in the colours and
// the font of the page.
import { readFileSync, writeFileSync } from 'node:fs'

// An arrow that closes a circle is one that leads back in the order of reading. The
// renderer has no option for that, so it becomes one of those that it gives to ELK.
const library = new URL('node_modules/beautiful-mermaid/dist/index.js', import.meta.url)
const known = '"elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",'
const order = '"elk.layered.cycleBreaking.strategy": "DEPTH_FIRST",'
const code = readFileSync(library, 'utf8')
if (!code.includes(known)) throw new Error('beautiful-mermaid has changed: see where it sets options of ELK')
if (!code.includes(order)) writeFileSync(library, code.replace(known, known + order))

const style = `<style>
svg.mermaid { --bg: var(--page, #fff); --fg: var(--text, #1f2328); height: auto; max-width: 100%;
  --_text: var(--fg); --_text-sec: var(--fg); --_text-muted: color-mix(in srgb, var(--fg) 80%, var(--bg)); --_text-faint: var(--_text-muted);
  --_line: color-mix(in srgb, var(--fg) 60%, var(--bg)); --_arrow: var(--fg);
  --_node-fill: color-mix(in srgb, var(--fg) 5%, var(--bg)); --_node-stroke: color-mix(in srgb, var(--fg) 40%, var(--bg));
  --_group-fill: var(--bg); --_group-hdr: color-mix(in srgb, var(--fg) 8%, var(--bg));
  --_inner-stroke: color-mix(in srgb, var(--fg) 25%, var(--bg)); --_key-badge: color-mix(in srgb, var(--fg) 12%, var(--bg)); }
svg.mermaid text { font-family: Inter, Arial, "Liberation Sans", sans-serif; }
</style>`

const { renderMermaidSVG } = await import(library)
const diagram = readFileSync(0, 'utf8')
const drawn = renderMermaidSVG(diagram, { transparent: true })
const svg = drawn.replace(/^<svg ([^>]*?) style="[^"]*">/, '<svg class="mermaid" $1>').replace(/<style>.*?<\/style>/s, style)
if (!svg.startsWith('<svg class="mermaid"') || !svg.includes(style)) throw new Error('beautiful-mermaid has changed: see how its SVG begins')
for (const [, label] of diagram.matchAll(/\w\[[("]*([^\])"]+)/g)) {
  if (!svg.includes(`>${label}<`)) throw new Error(`"${label}" is left out: give a node its label where the diagram names it first`)
}
console.log(svg.trim().replace(/[ \t]+\n/g, '\n'))
