"""Chat templates that use all that templates of models use, and a chat for them."""

from __future__ import annotations

from scheduler.chat_template import ChatMessage

CHAT = (
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="1 < 2 & '\u00e9'?"),
)

TEMPLATES = {
    "trimmed blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\nU: {{ m.content }}\n"
    "  {% endif %}\n{% endfor %}\nend\n",
    "whitespace control": "{{- bos_token -}}  {%- for m in messages -%} {{ m['content'] }} "
    "{%- endfor %}",
    "tojson": "{{ messages | tojson(indent=2) }}",
    "loop variables": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}"
    "{% if not loop.last %},{% endif %}{% endfor %}",
    "loop control": "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    "{% endfor %}",
    "namespace and macro": "{% set ns = namespace(n=0) %}"
    "{% macro say(m) %}[{{ m.role }}]{% endmacro %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ say(m) }}{% endfor %}{{ ns.n }}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
    "filters": "{% for m in messages if m.role != 'system' %}{{ m.content | trim | upper }}"
    "{{ '-' * 5 }}{% else %}none{% endfor %}{{ tools is none }}",
    "many filters": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content')"
    " | list | tojson }}{{ messages | map(attribute='role') | map('upper') | join('|') }}"
    "{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ [3, 1, 3] | unique"
    " | sort | reverse | list }}{{ [1, 2.5] | sum | round(1) }}{{ '7' | int + '1.5' | float }}"
    "{{ messages[0] | items | list }}{{ messages[0] | dictsort }}{{ '<a>' | e }}"
    "{{ x | default(1) }}{{ 'a\\nb' | indent(2) | replace('a', 'c') | safe }}"
    "{{ messages | groupby('role') | list }}"
    "{{ messages | first | string }}{{ (messages | last).role | title | capitalize | lower }}",
    "methods": "{% for m in messages %}{{ m.content.strip().split(' ')[-1].lstrip('<') }}"
    "{% for k, v in m.items() %}{{ k.upper() ~ v.replace('1', '2') }}{% endfor %}{{ m.get('x') }}"
    "{{ ', '.join(m.keys()) }}{{ m.content.startswith('B') and m.role is string }}"
    "{{ m.content.rsplit(' ', 1)[0] }}{{ m.content[:-1] + '%s %02d' % (m.role, 7) }}{% endfor %}",
    "blocks as values": "{% set a %}{% for m in messages %}[{{ m.role }}]{% endfor %}{% endset %}"
    "{% filter upper %}x{{ a }}{% endfilter %}{% set ns = namespace(l=[]) %}"
    "{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l }}{{ (1, {2: a}) }}"
    "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}{{ a ~ 1 ~ none }}{% endcall %}"
    "{{ messages[1:] }}{{ 'x' if 'user' in messages | map(attribute='role') else 2 ** 3 // 3 }}",
    "recursive loop": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}"
    "({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
}
