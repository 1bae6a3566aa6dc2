"""The report's style sheet: light and dark, for screen and paper."""

STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--page:#fff;--card:#f5f7fa;--signal:#1f5fa8;--noisy:#b8cfe8;
--edge:#c2410c;--plus:31,95,168;--minus:194,65,12}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa7b8;--line:#323c4a;
--page:#12171e;--card:#1b222c;--signal:#6aa9ec;--noisy:#33506f;--edge:#fb923c;--plus:106,169,236;--minus:251,146,60}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif;
overflow-wrap:break-word}
main{max-width:56rem;margin:0 auto;padding:2rem 1.25rem 4rem}
header p{margin:0;color:var(--soft)}
h1{margin:.2rem 0;font-size:1.7rem;line-height:1.25}
h2{margin:2.5rem 0 .5rem;font-size:1.3rem;border-bottom:2px solid var(--line);padding-bottom:.3rem}
h3{margin:2rem 0 .5rem;font-size:1.05rem}
h4{margin:1rem 0 .3rem;font-size:.95rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:1rem 0}
.cards div{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}
.cards dt{color:var(--soft);font-size:.8rem;line-height:1.3}
.cards dd{margin:.2rem 0 0;font-size:1.15rem;font-weight:600}
.privacy{background:var(--card);border-left:4px solid var(--signal);border-radius:.3rem;
padding:.2rem 1.2rem 1rem}
.facts{display:grid;grid-template-columns:minmax(10rem,auto) 1fr;gap:.15rem 1rem;font-size:.9rem}
.facts dt{color:var(--soft);overflow-wrap:anywhere}.facts dd{margin:0;overflow-wrap:anywhere}
.mono dd,.mono td,code{font-family:ui-monospace,monospace;font-size:.8rem;overflow-wrap:anywhere}
.mono td:not(:last-child){white-space:nowrap}
table{border-collapse:collapse;font-size:.88rem;margin:.6rem 0;min-width:50%}
th,td{text-align:left;padding:.28rem .7rem;border-bottom:1px solid var(--line);vertical-align:top}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
.wide{overflow-x:auto}
.heat td{text-align:right;font-variant-numeric:tabular-nums;border:1px solid var(--page)}
.heat td.plus{background:rgba(var(--plus),calc(var(--s)*.65))}
.heat td.minus{background:rgba(var(--minus),calc(var(--s)*.65))}
.heat th.dim{color:var(--soft);font-weight:400;opacity:.6}
.heat tbody th{font-weight:400}
figure{margin:.5rem 0}
figcaption,.note{color:var(--soft);font-size:.85rem;max-width:46rem}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .tick{fill:var(--soft)}svg .grid{stroke:var(--line)}
svg .noisy{fill:var(--noisy)}svg .signal{fill:var(--signal)}
svg .edge{stroke:var(--edge);stroke-width:2;stroke-dasharray:5 4;fill:none}
svg .edge-label{fill:var(--edge);font-weight:600}
svg .name{paint-order:stroke;stroke:var(--page);stroke-width:3px}svg .leader{stroke:var(--line)}
svg .arrow{stroke:var(--signal);stroke-width:1.5}svg .head{fill:var(--signal)}
svg .plus{fill:rgb(var(--plus))}svg .minus{fill:rgb(var(--minus))}
svg .spread{stroke:var(--ink);stroke-width:1.5}
svg .cloud{fill:var(--noisy);opacity:.45}
.figures td:nth-last-child(-n+2){text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.held{list-style:"✓ "}.held li{padding-left:.2rem}
.problem{border-left:4px solid var(--edge);padding-left:.8rem}
@media (max-width:34rem){main{padding:1rem .9rem 3rem}h1{font-size:1.45rem}
ul{padding-left:1.2rem}.privacy{padding:.1rem .8rem .8rem}
.cards{grid-template-columns:repeat(auto-fit,minmax(7.5rem,1fr));gap:.5rem}
.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:.5rem}
th,td{padding:.28rem .45rem}.wide svg{min-width:24rem}
svg text{font-size:15px}}
@media print{*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10.5pt}main{max-width:none;padding:0}
h2,h3,h4{break-after:avoid}figure,tr,li,.cards div,.facts dd{break-inside:avoid}
.wide{overflow:visible}table{font-size:.72rem;min-width:0}
th,td{padding:.2rem .4rem}svg{max-height:19rem}
.mono dd,.mono td{font-size:.66rem}}
"""
