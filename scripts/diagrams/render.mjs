// Reads a mermaid diagram from standard input and prints it as SVG.
import { readFileSync, writeFileSync } from 'node:fs'

// An arrow that closes a circle is one that leads back in the order of reading. The
// renderer has no option for that, so it becomes one of those that it gives to ELK.
const library = new URL('node_modules/beautiful-mermaid/dist/index.js', import.meta.url)
const known = '"elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",'
const order = '"elk.layered.cycleBreaking.strategy": "DEPTH_FIRST",'
const code = readFileSync(library, 'utf8')
if (!code.includes(known)) throw new Error('beautiful-mermaid has changed: see where it sets options of ELK')
if (!code.includes(order)) writeFileSync(library, code.replace(known, known + order))

const { renderMermaidSVG } = await import(library)
console.log(renderMermaidSVG(readFileSync(0, 'utf8'), { transparent: true }))
